"""What fast engines are tried on: hard texts and odd conversations, the same ones every time.

Invariants:
- Everything is drawn from a seeded generator: the same arguments give the same corpus, on one
  version of Python (whose Unicode tables it follows).
- A change to the corpus, to how it is tried, or to what an engine is built from
  (`tokenlane.tokens.encode.metaspace`) raises VERSION, which drops earlier results.
"""

import json
import random
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

VERSION = 7

SPACES = " \t\n\r\x0b\x0c\x1c\x85\xa0\u1680\u2003\u2028\u202f\u3000\u200b\ufeff"
_FRAGMENTS = (
    "a", "the", " quick", "Fox", "don't", "I'LL", "'s", "x_y", "snakeCase", "e\u0301", "\u0301",
    "ﬁ", "İ", "ß", "Ǆ", "Å", "\u212b", "日本語", "한국", "ไทย", "नमस्ते", "مرحبا", "▁", "Ġ",
    "👩\u200d👩\u200d👧", "🇩🇪", "👍🏽", "<0x0A>", "0", "007", "1234567890", "3.14",
    "１２", "½", "١٢", "://", "...", "!!!", "—", "\\n", "\x00", "\x7f", "\ufffd",
    "\U0010ffff", "\u202e", "\ue000",
)  # fmt: skip
_CODE = (
    "def f(x):\n\treturn {'a': [1, 2.5e-3], \"b\": None}  # fin\n",
    "for (int i=0;i<n;++i) { s+=a[i]<<2; }\r\n\r\n",
    "SELECT * FROM t WHERE a<>'x''y' -- c\n",
    "https://example.org/a%20b?c=d&e=%C3%A9#f user@example.org",
    '<p class="x">&amp;</p>\n\n\n    <br/>',
)


def texts(added: list[str]) -> list[str]:
    """Return texts to encode, a few hundred kilobytes in all; added: the tokenizer's added
    tokens."""
    draw = random.Random(f"texts {VERSION}")
    found = ["", *_FRAGMENTS, *_CODE, *SPACES, *added, "".join(added), " ".join(added)]
    classes = _classes(draw)
    for characters in classes.values():
        found += ["".join(draw.choices(characters, k=24)), " ".join(characters[:12])]
    parts = _token_parts(draw, added)
    everything = "".join("".join(characters) for characters in classes.values())
    for _ in range(1500):
        found.append("".join(_piece(draw, parts, everything) for _ in range(draw.randint(1, 12))))
    # Long texts: a word, a run, a mark on a mark.
    letters = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=3000))
    found += [letters, letters.upper() + letters, "e" + "\u0301" * 1000, "日本" * 800]
    found += [each * 2000 for each in ("a", "0", "!", " ", "\n", " \t", "\r\n", "'", "👩\u200d")]
    return found


def _classes(draw: random.Random) -> dict[str, list[str]]:
    """Return characters by Unicode category, without the surrogates."""
    points = [*range(0x3000), *draw.sample(range(0x3000, 0x110000), 20_000)]
    found = by_category(points).items()
    return {name: draw.sample(every, min(len(every), 48)) for name, every in found}


def by_category(points: Iterable[int]) -> dict[str, list[str]]:
    """Return the characters at these code points by Unicode category, without the surrogates."""
    found: dict[str, list[str]] = {}
    for character in map(chr, points):
        found.setdefault(unicodedata.category(character), []).append(character)
    found.pop("Cs", None)
    return found


def _token_parts(draw: random.Random, added: list[str]) -> list[str]:
    """Return added tokens whole, halved, one within another."""
    parts = list(added)
    for token in draw.sample(added, min(len(added), 100)):
        at = draw.randint(0, len(token))
        other = draw.choice(added)
        parts += [token[:at], token[at:], token[:at] + other + token[at:], token.upper()]
        parts += [f" {token}\n", token + other, token[:-1], token + token[-1:]]
    return parts or ["<s>"]


def _piece(draw: random.Random, parts: list[str], everything: str) -> str:
    kind = draw.random()
    if kind < 0.25:
        return draw.choice(parts)
    if kind < 0.55:
        return draw.choice(_FRAGMENTS)
    if kind < 0.75:
        return "".join(draw.choices(SPACES if kind < 0.65 else " \n", k=draw.randint(1, 6)))
    if kind < 0.85:
        return draw.choice(_CODE)
    return "".join(draw.choices(everything, k=draw.randint(1, 8)))


class Chat(NamedTuple):
    """A chat request's fields, as its JSON holds them; variables: chat_template_kwargs."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    documents: list[dict[str, str]] | None
    variables: dict[str, Any]
    add_generation_prompt: bool
    continue_final_message: bool


def chats(
    words: list[str], variables: list[str], keys: list[str], count: int = 500
) -> Iterator[Chat]:
    """Yield conversations; words: strings that the template compares with; variables: names that it
    reads; keys: of objects, which documents may have."""
    draw = random.Random(f"chats {VERSION}")
    words = [
        *words, *(word for word in _FRAGMENTS if word != "\ufffd"), "", "", " ", "\n", "\x1c \x1f",
        " padded \n", "<b>&amp;'\"</b>", "a\r\nb", "<think>\nwhy\n</think>\n\nso", "</think>",
        "{{ x }}", "{% if %}", "None", "long " * 50,
    ]  # fmt: skip
    values: list[Any] = [True, False, 0, 3, "low", "high", [], ["a"], {"a": 1}, 1.5, *words[:40]]
    for _ in range(count):
        go_on = draw.random() < 0.1
        yield Chat(
            messages=_messages(draw, words),
            tools=[_tool(draw, words) for _ in range(draw.randint(1, 3))]
            if draw.random() < 0.4
            else None,
            documents=[_document(draw, words, keys) for _ in range(draw.randint(0, 4))]
            if draw.random() < 0.4
            else None,
            variables={name: draw.choice(values) for name in variables if draw.random() < 0.4},
            add_generation_prompt=not go_on and draw.random() < 0.7,
            continue_final_message=go_on,
        )


def _text(draw: random.Random, words: list[str]) -> str:
    return "".join(draw.choices(words, k=draw.randint(1, 3)))


def _messages(draw: random.Random, words: list[str]) -> list[dict[str, Any]]:
    """Draw messages: mostly turns in good order, otherwise roles at random."""
    roles = [draw.choice(("system", "developer"))] if draw.random() < 0.5 else []
    if draw.random() < 0.75:
        for _ in range(draw.randint(1, 4)):
            roles += ["user"]
            roles += ["assistant", "tool", "tool"][: draw.randint(1, 3)] * draw.randint(0, 2)
            roles += ["assistant"]
        roles = roles[: -1 if draw.random() < 0.7 else None]
    else:
        kinds = ("system", "developer", "user", "assistant", "tool", "critic")
        roles += draw.choices(kinds, k=draw.randint(1, 6))
    return [_message(draw, words, role) for role in roles]


def _message(draw: random.Random, words: list[str], role: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": _text(draw, words)}
    kind = draw.random()
    if kind < 0.2:
        parts = [{"type": "text", "text": _text(draw, words)} for _ in range(draw.randint(0, 3))]
        message["content"] = parts
    elif role == "assistant" and kind < 0.4:
        message["content"] = None
    if draw.random() < 0.1:
        message["name"] = _text(draw, words)
    if role == "tool" and draw.random() < 0.7:
        message["tool_call_id"] = f"call-{draw.randint(0, 9)}"
    if role == "assistant":
        if draw.random() < 0.3:
            field = draw.choice(("reasoning", "reasoning_content"))
            message[field] = _text(draw, words)
        if draw.random() < 0.4:
            message["tool_calls"] = [_call(draw, words) for _ in range(draw.randint(1, 3))]
    return message


def _call(draw: random.Random, words: list[str]) -> dict[str, Any]:
    given = {draw.choice(("b", "a", "é", "items")): _value(draw, words, 3) for _ in range(3)}
    arguments = json.dumps(given) if draw.random() < 0.9 else draw.choice(("", "[1]", "{"))
    function = {"name": draw.choice(("f", "get_é", "a<b")), "arguments": arguments}
    return {"type": "function", "id": f"call-{draw.randint(0, 9)}", "function": function}


def _value(draw: random.Random, words: list[str], depth: int) -> Any:
    kind = draw.random()
    if depth and kind < 0.15:
        return {draw.choice(("z", "a", "keys")): _value(draw, words, depth - 1) for _ in range(2)}
    if depth and kind < 0.3:
        return [_value(draw, words, depth - 1) for _ in range(draw.randint(0, 3))]
    if kind < 0.5:
        return draw.choice((True, False, None, 0, -7, 2**40))
    # Floats and long integers take the reference in any case; one in thirty is enough.
    return draw.choice((1e16, 2**70)) if kind > 0.97 else _text(draw, words)


def _tool(draw: random.Random, words: list[str]) -> dict[str, Any]:
    kinds = ("string", "integer", "array", "object", ["string", "null"])
    properties: dict[str, Any] = {}
    for name in draw.sample(("city", "items", "größe", "n", "type"), 3):
        one: dict[str, Any] = {"type": draw.choice(kinds)}
        if draw.random() < 0.7:
            one["description"] = _text(draw, words)
        if draw.random() < 0.3:
            one["enum"] = ["a", 1, None][: draw.randint(1, 3)]
        if one["type"] == "array":
            one["items"] = {"type": "string"}
        if one["type"] == "object":
            one["properties"] = {"x": {"type": "integer", "default": 3}}
        properties[name] = one
    function: dict[str, Any] = {"name": draw.choice(("f", "get_é", "a<b"))}
    if draw.random() < 0.9:
        function["description"] = _text(draw, words)
    if draw.random() < 0.9:
        required = draw.sample(sorted(properties), draw.randint(0, 2))
        function["parameters"] = {
            "type": "object", "properties": properties, "required": required,
        }  # fmt: skip
    return {"type": "function", "function": function}


def _document(draw: random.Random, words: list[str], keys: list[str]) -> dict[str, str]:
    """Draw a document: clients agree on a title and a text, and a template may read other keys."""
    names = [name for name in ("title", "text") if draw.random() < 0.8]
    names += [name for name in keys if draw.random() < 0.4]
    return {name: _text(draw, words) for name in names}

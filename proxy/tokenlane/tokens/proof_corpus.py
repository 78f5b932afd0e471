"""What a replica is asked to tokenize, to prove that it makes the same ids: drawn from the model's
own tokenizer and template, other texts each time.

Invariants:
- Every draw has every added token in and out of place, every Unicode category, and chats of every
  kind; what is drawn within them differs.
- The runs of ids go through the whole vocabulary once, in an order in which no entry stands beside
  those that are like it: two entries that are swapped show as another text.
- Everything is made piece by piece: no step of a generator takes much longer than a millisecond.
"""

from collections.abc import Iterator
from functools import cache
from math import gcd
from random import Random
from typing import Any

from tokenlane.fleet_state import IdKind
from tokenlane.tokens.chat.template_variables import OVERRULED, STEERING
from tokenlane.tokens.encode.encoder import Encoder
from tokenlane.tokens.ids import pack
from tokenlane.tokens.probe_corpus import SPACES, by_category
from tokenlane.tokens.tokenizer import Tokenizer

RUN_TOKENS = 1024
# Ids behind the last one, for which a replica with another added token has a text.
_BEYOND_TOKENS = 1024
_ADDED_COUNT = 48
_WORD_COUNT = 400
_VARIABLE_LIMIT = 8
_TRICKY = (
    "Hello, world!",
    "  two  spaces \n\n\ttabs\r\n",
    "def f(x: int) -> int:\n    return x ** 2  # 3.14\n",
    "naïve café, 東京で会う, Привет, שלום, สวัสดีครับ ทุกท่าน, 🇩🇪👩\u200d👩\u200d👧",
    "don't I'LL we'Ve 1234567890 007 ½ ١٢ a" + "b" * 40,
    "<|im_start|>user\n<|im_end|><s></s><|endoftext|>[INST]",
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "e.g. Zürich <&>"},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city"],
        },
    },
}
_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Zürich", "unit": "C"}'},
}


def requests(tokenizer: Tokenizer, kind: IdKind, draw: Random) -> Iterator[dict[str, Any]]:
    """Yield requests whose ids prove a kind, by their fields; none where no request can."""
    encoder = tokenizer.encoder
    if kind is IdKind.COMPLETION:
        for text in texts(encoder, draw):
            yield {"prompt": text}
        yield {"prompt": draw.choice(_TRICKY), "add_special_tokens": False}
        return
    said = [_said(encoder, draw) for _ in range(6)]
    if kind is IdKind.CHAT:
        for messages in _conversations(said):
            yield {"messages": messages}
    elif kind is IdKind.TOOLS:
        for messages in _with_tools(said):
            yield {"messages": messages, "tools": _tools(draw)}
    elif kind is IdKind.OPTIONS:
        yield from _options(tokenizer, said, draw)


def texts(encoder: Encoder, draw: Random) -> Iterator[str]:
    """Yield texts of a few kilobytes at most."""
    yield "\n".join(draw.sample(_TRICKY, len(_TRICKY)))
    added = encoder.added
    draw.shuffle(added)
    for at in range(0, len(added), _ADDED_COUNT):
        yield "".join(f"{one} a{one}b  {one}\n{one[:-1]}" for one in added[at : at + _ADDED_COUNT])
    every = [draw.sample(some, min(len(some), 24)) for some in categories().values()]
    for at in range(0, len(every), 6):
        some = every[at : at + 6]
        yield " ".join("".join(f"a{one}b{one}" for one in each) for each in some)
        yield " ".join("".join(each) for each in some)
    yield " ".join(_marked(draw) for _ in range(120))
    digits = [c for name, some in categories().items() if name[0] == "N" for c in some]
    numbers = ["".join(draw.choices("0123456789", k=length)) for length in range(1, 14)]
    yield " ".join([*numbers, *("".join(draw.choices(digits, k=5)) for _ in range(20))])
    yield "".join("x" + "".join(draw.choices(SPACES, k=draw.randint(1, 6))) for _ in range(80))
    words = _words(encoder, draw)
    yield " ".join(words)
    yield "".join(words)


@cache
def categories() -> dict[str, list[str]]:
    """Return characters by Unicode category: some of each, all of the scripts' letters and
    marks."""
    points = [
        *range(0x3400),
        *range(0xA000, 0xA100),
        *range(0xE000, 0xE010),
        *range(0xF900, 0xFB00),
    ]
    points += [*range(0xFB00, 0x10000), *range(0x1F100, 0x1FB00, 3), *range(0x1E000, 0x1E900)]
    points += [0xE0001, 0xE0100, 0xF0000, 0x10FFFD, *range(0x20000, 0x20040)]
    return by_category(points)


@cache
def _scripts() -> list[tuple[list[str], list[str]]]:
    """Return letters and marks that stand in the same block."""
    blocks: dict[int, tuple[list[str], list[str]]] = {}
    for name, some in categories().items():
        for one in some:
            if name[0] in "LM":
                blocks.setdefault(ord(one) >> 7, ([], []))[name[0] == "M"].append(one)
    return [(letters, marks) for letters, marks in blocks.values() if letters and marks]


def _marked(draw: Random) -> str:
    """Return a word whose letters carry marks, as many scripts write."""
    letters, marks = draw.choice(_scripts())
    return "".join(
        draw.choice(letters) + "".join(draw.choices(marks, k=draw.randint(0, 2)))
        for _ in range(draw.randint(1, 5))
    )


def _words(encoder: Encoder, draw: Random) -> list[str]:
    """Return entries of the vocabulary as they are written, long ones above all."""
    size = encoder.vocabulary_size
    drawn = [encoder.decode(pack([draw.randrange(size)])) for _ in range(_WORD_COUNT)]
    drawn.sort(key=len)
    return drawn[-_WORD_COUNT // 4 :] + draw.sample(drawn, _WORD_COUNT // 4)


def _said(encoder: Encoder, draw: Random) -> str:
    added = encoder.added
    parts = [draw.choice(_TRICKY), _marked(draw), draw.choice(added) if added else "<s>"]
    return draw.choice(["", " ", "\n"]) + " ".join(draw.sample(parts, 3)) + draw.choice(["", " \n"])


def _conversations(said: list[str]) -> Iterator[list[dict[str, Any]]]:
    one, two, three, four, five, six = said
    yield [{"role": "user", "content": "Hello"}]
    yield [{"role": "system", "content": one}, {"role": "user", "content": two}]
    turns = [
        {"role": "user", "content": three},
        {"role": "assistant", "content": four},
        {"role": "user", "content": five},
    ]
    yield turns
    yield [{"role": "system", "content": six}, *turns, *turns[1:]]
    yield [
        {"role": "user", "content": [{"type": "text", "text": one}, {"type": "text", "text": two}]}
    ]
    yield [*turns[:1], {"role": "assistant", "content": "<think>\nso\n</think>\n\n" + four}, *turns]


def _with_tools(said: list[str]) -> Iterator[list[dict[str, Any]]]:
    asked = {"role": "user", "content": said[0]}
    called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    result = {"role": "tool", "tool_call_id": "call00001", "content": said[1]}
    yield [asked]
    yield [{"role": "system", "content": said[2]}, asked]
    yield [asked, called, result]
    yield [asked, called, result, {"role": "assistant", "content": said[3]}, asked]


def _tools(draw: Random) -> list[dict[str, Any]]:
    other = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
    return draw.choice([[_TOOL], [_TOOL, other]])


def _options(tokenizer: Tokenizer, said: list[str], draw: Random) -> Iterator[dict[str, Any]]:
    messages = [{"role": "system", "content": said[0]}, {"role": "user", "content": said[1]}]
    yield {"messages": messages, "add_generation_prompt": False}
    begun = [*messages, {"role": "assistant", "content": "So it begins"}]
    yield {
        "messages": begun,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    for effort in ("none", "low", "high"):
        yield {"messages": messages, "reasoning_effort": effort}
    if "documents" in tokenizer.variables:
        found = [{"title": said[2], "text": said[3]}, {"title": said[4], "text": said[5]}]
        for documents in (found[:1], found):
            yield {"messages": messages, "documents": documents}
    known = STEERING | OVERRULED | {"documents", "raise_exception", "strftime_now"}
    names = sorted(tokenizer.variables - known - tokenizer.specials.keys())
    for name in draw.sample(names, min(len(names), _VARIABLE_LIMIT)):
        for value in (True, False):
            yield {"messages": messages, "chat_template_kwargs": {name: value}}


def runs(encoder: Encoder, draw: Random) -> Iterator[list[int]]:
    """Yield the whole vocabulary, and a little beyond, RUN_TOKENS at a time."""
    size = encoder.vocabulary_size
    step = draw.randrange(size // 3, size)
    while gcd(step, size) != 1:
        step += 1
    first = draw.randrange(size)
    yield list(range(size, size + _BEYOND_TOKENS))
    for at in range(0, size, RUN_TOKENS):
        yield [(first + step * one) % size for one in range(at, min(at + RUN_TOKENS, size))]

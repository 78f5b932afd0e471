"""Request bodies: chat requests of a given size or length, the same ones every time. Pure.

Invariants:
- Everything follows from a seed: two proxies in one run see the same bytes.
- Text is words with the lengths of English, so that an encoder's word cache behaves as it does
  on real prompts.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from bench.tools.demo_model import MODEL

CHAT = "/v1/chat/completions"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "edit",
            "description": "Replace text in a file, or read it where there is nothing to replace.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "old": {"type": "string"}},
                "required": ["path"],
            },
        },
    }
]

WORDS = (
    "the of and to in is that it was for on are as with they at be this from have or by one had "
    "not but what all were when we there can an your which their said if do will each about how "
    "up out them then she many some so these would other into has more her two like him see time "
    "could no make than first been its who now people my made over did down only way find use may "
    "water long little very after words called just where most know get through back much before "
    "also around another came come work three word must because does part even place well such "
    "here take why things help put years different away again off went old number great tell men "
    "say small every found still between name should home big give air line set own under read "
    "last never us left end along while might next sound below saw something thought both few "
    "those always looked show large often together asked house world going want school important "
    "until form food keep children feet land side without boy once animals life enough took "
    "sometimes four head above kind began almost live page got earth need far hand high year "
    "mother light parts country father let night following picture being study second eyes soon "
    "times story boys since white days ever paper hard near sentence better best across during "
    "today others however sure means knew try told young miles sun ways thing whole hear example "
    "heard several change answer room sea against top turned learn point city play toward five "
    "using himself usually replica prefix request token gateway latency throughput configuration"
).split()


def text(size_chars: int, seed: int) -> str:
    """Words and full stops, exactly `size_chars` characters of plain ASCII."""
    chooser = random.Random(seed)
    pieces: list[str] = []
    size = 0
    while size < size_chars:
        sentence = " ".join(chooser.choices(WORDS, k=12)) + ". "
        pieces.append(sentence)
        size += len(sentence)
    return "".join(pieces)[:size_chars]


def varied(size_chars: int, seed: int, rare: float = 0.05) -> str:
    """As `text`, but a share of the words was never seen before, as in real prose: caches of words
    do not make an encoder look faster than it is."""
    chooser = random.Random(seed)
    words: list[str] = []
    size = 0
    while size <= size_chars:
        word = chooser.choice(WORDS)
        if chooser.random() < rare:
            word = "".join(chooser.choices("abcdefghijklmnopqrstuvwxyz", k=chooser.randint(4, 10)))
        words.append(word)
        size += len(word) + 1
    return " ".join(words)[:size_chars]


_NAMES = "size count index value result buffer offset cache token node path state item key".split()
_LINES = (
    'def {a}_{b}(self, {c}: int, {d}: str = "{n}") -> None:\n',
    "    if {a} >= {n} and not self._{b}[{c}]:\n",
    '        raise ValueError(f"{a} of {{{b}!r}} is {n}, not \\"{c}\\"")\n',
    '    self._{a}["{b}"] = {c}({d}, key=lambda one: one.{a} // {n})\n',
    "\tfor {a}, {b} in enumerate(zip({c}s, {d}s, strict=True)):\n",
    "\t\tlog.debug('%s: {a}\\t%d', {b}, {c} + 0x{n:04x})  # see {d}_{n}\n",
    "\n",
)


def code(size_chars: int, seed: int) -> str:
    """Program text, exactly `size_chars` characters of plain ASCII: in JSON a tenth of it is
    escapes."""
    chooser = random.Random(seed)
    lines: list[str] = []
    size = 0
    while size < size_chars:
        a, b, c, d = chooser.choices(_NAMES, k=4)
        line = chooser.choice(_LINES).format(a=a, b=b, c=c, d=d, n=chooser.randrange(10_000))
        lines.append(line)
        size += len(line)
    return "".join(lines)[:size_chars]


Message = dict[str, Any]


def said(messages: list[tuple[str, str]]) -> list[Message]:
    """Messages of (role, content) pairs."""
    return [{"role": role, "content": content} for role, content in messages]


def chat(messages: list[tuple[str, str]], *, stream: bool = False, max_tokens: int = 16) -> bytes:
    """Body of a chat request: (role, content) pairs in order."""
    return body_of(said(messages), stream=stream, max_tokens=max_tokens)


def body_of(
    messages: list[Message],
    *,
    stream: bool = False,
    max_tokens: int = 16,
    tools: Sequence[dict[str, Any]] = TOOLS,
) -> bytes:
    """As `chat`, of whole messages; with the tools that they call, if they call any."""
    body = {"model": MODEL, "messages": messages, "max_tokens": max_tokens, "stream": stream}
    if any("tool_calls" in message for message in messages):
        body["tools"] = tools
    return json.dumps(body, ensure_ascii=False).encode()


def sized(size_bytes: int, seed: int, *, stream: bool = False) -> bytes:
    """One user message in a body of exactly `size_bytes`; the seed opens the text."""
    empty = chat([("user", f"{seed:08d} ")], stream=stream)
    filler = text(size_bytes - len(empty), seed)
    return chat([("user", f"{seed:08d} {filler}")], stream=stream)


class Conversations:
    """Chats of many turns, none of whose turns is like another's; cut from one text made once."""

    def __init__(self, seed: int = 0) -> None:
        self._text = text(1 << 20, seed)

    def messages(self, size_chars: int, turns: int, nonce: str) -> list[tuple[str, str]]:
        """(role, content) of about `size_chars` in all; the nonce opens every turn."""
        each = max(1, size_chars // turns)
        chooser = random.Random(nonce)
        roles = ("user", "assistant")
        made = []
        for turn in range(turns):
            at = chooser.randrange(len(self._text) - each) if each < len(self._text) else 0
            filler = self._text[at : at + each]
            while len(filler) < each:
                filler += self._text[: each - len(filler)]
            made.append((roles[turn % 2], f"{nonce}.{turn} {filler}"))
        return made

    def body(
        self, size_chars: int, turns: int, nonce: str, *, system: str = "", stream: bool = False
    ) -> bytes:
        """The body of such a chat, behind a system prompt if there is one."""
        before = [("system", system)] if system else []
        return chat(before + self.messages(size_chars, turns, nonce), stream=stream)


# A body in two parts, to be sent around a running number of so many digits.
Parts = tuple[bytes, bytes]
NUMBER_DIGITS = 16


def marked(text: str) -> str:
    """A text that begins with a number that is not there yet."""
    return f"{'@' * NUMBER_DIGITS} {text}"


def asked_anew(messages: list[Message]) -> list[Message]:
    """Messages the last of which begins so."""
    *before, last = messages
    return [*before, {**last, "content": marked(last["content"])}]


def around_number(body: bytes) -> Parts:
    """A body in which such a text stands, in its two parts."""
    head, tail = body.split(b"@" * NUMBER_DIGITS)
    return head, tail


def numbered(messages: list[Message]) -> Parts:
    """The body of a chat whose last message begins with a number that is not there yet."""
    return around_number(body_of(asked_anew(messages)))


def sized_parts(size_bytes: int, seed: int) -> Parts:
    """As `sized`, around a number at the beginning of the message."""
    empty = chat([("user", marked(""))])
    return numbered(said([("user", text(size_bytes - len(empty), seed))]))


# (characters, seed) -> text.
Write = Callable[[int, int], str]


def question(
    system_bytes: int, user_bytes: int, seed: int, systems: int, write: Write = text
) -> list[Message]:
    """One of so many system prompts, and a question."""
    system = write(system_bytes, seed % systems)
    return said([("system", system), ("user", write(user_bytes, 1_000_000 + seed))])


def shared_prefix(
    system_bytes: int, user_bytes: int, seed: int, systems: int, write: Write = text
) -> Parts:
    """One of so many system prompts, and a question that is new each time."""
    user_bytes -= NUMBER_DIGITS + 1
    return numbered(question(system_bytes, user_bytes, seed, systems, write))


def conversation(
    turns: int, size_bytes: int, seed: int, write: Write = text
) -> list[tuple[str, str]]:
    """A system prompt and so many turns of question and answer, the last one not answered yet;
    about `size_bytes` of text in all, a quarter of it questions."""
    turn_bytes = size_bytes // turns
    own = write(size_bytes, seed)
    messages = [("system", write(turn_bytes // 4, 500_000 + seed))]
    for turn in range(turns):
        at = turn * turn_bytes
        split = at + turn_bytes // 4
        messages += [("user", own[at:split]), ("assistant", own[split : at + turn_bytes])]
    return messages[:-1]


CONVERSATIONS = 16
TURNS = 100
LONG_BYTES = 390_000


def last_of(talks: list[list[Message]]) -> list[list[Message]]:
    """Conversations up to each of their last four questions: first all of one length, then the
    next."""
    return [talk[: len(talk) - 2 * left] for left in reversed(range(4)) for talk in talks]


def talks(size_bytes: int, write: Write = text) -> list[list[Message]]:
    """16 conversations of 100 turns."""
    return [said(conversation(TURNS, size_bytes, seed, write)) for seed in range(CONVERSATIONS)]


def last_turns(size_bytes: int, write: Write = text) -> list[Parts]:
    """The turns 97 to 100 of 16 conversations of that size, with a new question each; first all of
    one length, then the next."""
    return [numbered(talk) for talk in last_of(talks(size_bytes, write))]


def calling_talks(size_bytes: int, write: Write = code) -> list[list[Message]]:
    """As `talks`, of agents: each turn of theirs calls a tool."""
    told = []
    for seed in range(CONVERSATIONS):
        talk: list[Message] = []
        for number, (role, content) in enumerate(conversation(TURNS, size_bytes, seed, write)):
            if role == "assistant":
                arguments = json.dumps({"path": f"src/{seed}/{number}.py", "old": content[-200:]})
                call = {
                    "id": f"call_{seed}_{number}",
                    "type": "function",
                    "function": {"name": "edit", "arguments": arguments},
                }
                talk.append({"role": role, "content": content[:-200], "tool_calls": [call]})
            elif number > 1:
                answered = talk[-1]["tool_calls"][0]["id"]
                talk.append({"role": "tool", "tool_call_id": answered, "content": content})
            else:
                talk.append({"role": role, "content": content})
        told.append(talk)
    return told


def last_calls(size_bytes: int, write: Write = code) -> list[Parts]:
    """As `last_turns`, of agents; what the tool answers last is new."""
    return [numbered(talk) for talk in last_of(calling_talks(size_bytes, write))]


def request(path: str, body: bytes, host: str = "127.0.0.1") -> bytes:
    """A whole HTTP/1.1 POST with a JSON body; GET when there is none."""
    if not body:
        return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n".encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nAccept: */*\r\n\r\n"
    )
    return head.encode() + body

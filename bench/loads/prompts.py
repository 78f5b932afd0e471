"""Prompts for the tokenization ladder in process: conversations and hostile text."""

import json
import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from tokenizers import Tokenizer as Backend

from bench.loads import workload
from bench.tools.demo_model import MODEL_FOLDER
from tokenlane.config.settings import TokenSettings
from tokenlane.http.body_pieces import BodyPieces
from tokenlane.parts import BodyParts
from tokenlane.protocols.bodies import ChatBody, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.caches.body_prefixes import LEAST_BYTES, OPENING_BYTES
from tokenlane.tokens.model_tokenizers import ModelTokenizers
from tokenlane.tokens.service import Outcome, TokenService
from tokenlane.tokens.tokenizer import Tokenizer

# Odd: a request's last message is the user's.
TURNS = 101
BLOCK_TOKENS = 16
# What uvloop reads of a socket at once.
_READ_BYTES = 256 * 1024
# English words as the workload makes them.
CHARS_PER_TOKEN = 5.0


def chars_for(tokens: int) -> int:
    """Return how many characters of the workload's text make about that many demo tokens."""
    sample = workload.text(100_000, 0)
    encoder: Any = Backend.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    return round(len(sample) * tokens / len(encoder.encode(sample).ids))


def conversation(tokens: int, turns: int, seed: int) -> list[dict[str, str]]:
    """Messages of about so many tokens in all; the seed opens the first, so that none is alike."""
    chars = int(tokens * CHARS_PER_TOKEN / turns)
    roles = ("user", "assistant")
    return [
        {"role": roles[turn % 2], "content": f"{seed} {turn} {workload.text(chars, seed + turn)}"}
        for turn in range(turns)
    ]


def agent(tokens: int, turns: int, seed: int, *, mixed: bool = True) -> list[list[dict[str, Any]]]:
    """The messages of each turn of an agent: a question, then calls and their answers, of about so
    many tokens in all. mixed: one to three calls, in a sequence that no other seed has; else one a
    turn."""
    rng, chars = random.Random(seed), int(tokens * CHARS_PER_TOKEN / turns)
    told: list[list[dict[str, Any]]] = [
        [
            {"role": "system", "content": f"{seed} {workload.code(chars, seed)}"},
            {"role": "user", "content": f"Mend it, {seed}."},
        ]
    ]
    for turn in range(1, turns):
        text = workload.code(chars, seed + turn)
        said = rng.choice((text[: chars // 8], "", None)) if mixed else text[: chars // 8]
        calls = rng.choice((1, 1, 2, 3)) if mixed else 1
        names = [f"call-{seed}-{turn}-{number}" for number in range(calls)]
        arguments = json.dumps({"path": text[:40], "line": turn})
        called = [
            {"id": name, "type": "function", "function": {"name": "read", "arguments": arguments}}
            for name in names
        ]
        answers = [
            {"role": "tool", "tool_call_id": name, "content": text[chars // 8 :][at :: len(names)]}
            for at, name in enumerate(names)
        ]
        told.append([{"role": "assistant", "content": said, "tool_calls": called}, *answers])
    return told


def renewed(messages: list[dict[str, str]]) -> Callable[[], bytes]:
    """Makes bodies of this conversation that have no message in common."""
    mark = "@" * workload.NUMBER_DIGITS
    marked = [{**one, "content": f"{mark} {one['content']}"} for one in messages]
    body, numbers = raw(marked), count()
    return lambda: body.replace(mark.encode(), b"%0*d" % (workload.NUMBER_DIGITS, next(numbers)))


def raw(messages: Sequence[dict[str, Any]]) -> bytes:
    """The body of a chat request."""
    return json.dumps({"model": "m", "messages": messages}).encode()


def ladder(tokenizer: Tokenizer) -> TokenService:
    """A worker's ladder with this one model, as its settings are by default."""
    return TokenService(TokenSettings(), ModelTokenizers({"m": tokenizer}), BLOCK_TOKENS)


async def ids_of(service: TokenService, body: bytes) -> Outcome:
    """What the gateway does with a body until it is routed, where its ids are forwarded: as its
    server, its planner and its reader of prompts do."""
    turn = service.begun(Kind.CHAT, body) if OPENING_BYTES <= len(body) < LEAST_BYTES else None
    if len(body) >= LEAST_BYTES:
        pieces = BodyPieces(service.bodies.part)
        for at in range(0, len(body), _READ_BYTES):
            pieces.add(memoryview(body)[at : at + _READ_BYTES])
        turn = service.begun(Kind.CHAT, BodyParts(pieces.same, b"".join(pieces.rest)))
    request = inspect(Kind.CHAT, body) if turn is None else turn.request
    assert isinstance(request, ChatBody)
    known = service.known("m", request, turn)
    if isinstance(known, Outcome):
        return known
    return service.plain("m", request, known, body) or await service.make(
        "m", request, known, raw=body, turn=turn
    )


HOSTILE_BYTES = 1_000_000


def hostile(kind: str, seed: int, size: int = HOSTILE_BYTES) -> str:
    """About so many bytes that tokenizers dislike; each seed gives another text, of words that no
    other has."""
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    if kind == "no spaces":
        return str(seed) + workload.text(size * 5 // 4, seed).replace(" ", "")
    if kind == "one letter":
        # A run of another length is another word.
        return str(seed) + letters[seed % 26] * (size - seed)
    if kind == "random letters":
        return "".join(rng.choices(letters, k=size))
    marks = [chr(code) for code in range(0x300, 0x370)]
    return str(seed) + "".join(rng.choices(["e", *marks], k=size // 2))


HOSTILE = ("no spaces", "one letter", "random letters", "combining marks")

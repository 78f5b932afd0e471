"""The first messages of a conversation, read from the beginning of its raw JSON.

Invariants:
- At most TEXT_LIMIT_BYTES are looked at, about 0.1 ms, however long the conversation is.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from tokenlane.tokens.blocks import TEXT_LIMIT_BYTES

SYSTEM_ROLES = frozenset({"system", "developer"})

_scan = json.JSONDecoder().raw_decode


class Scanned(NamedTuple):
    """A message, whole, and its place in the text."""

    message: Any
    start: int
    stop: int


def beginning(raw: msgspec.Raw | memoryview) -> str:
    """Return the text that is looked at."""
    return bytes(memoryview(raw)[:TEXT_LIMIT_BYTES]).decode("utf-8", "replace")


def first_place(text: str) -> int:
    """Return where a list's messages begin; 0 where it is no list but one text."""
    return text.find("[") + 1 if not text.startswith('"') else 0


def messages(text: str) -> Iterator[Scanned]:
    """Yield the values of a list. Raise ValueError or RecursionError where one cannot be read, and
    at the end of the list."""
    at = first_place(text)
    while True:
        start = at + _gap(text[at : at + 64])
        message, at = _scan(text, start)
        yield Scanned(message, start, at)


def _gap(text: str) -> int:
    """Return the bytes between two messages."""
    return len(text) - len(text.lstrip(" \t\r\n,"))

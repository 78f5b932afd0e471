"""Where a chat's body may be left: behind a message, if its rendering has an exact cut there.

Invariants:
- A mark stands at the first cut behind the last text of its message, and before the first text of
  the next one: what the template says in between may depend on what follows, and is compared.
- Behind a mark no text from before it is shown, and before it none from behind it.
- A body is kept only where no field around its messages names messages: a tool's property may.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from tokenlane.parts import in_parts
from tokenlane.protocols.bodies import ChatBody, Prompted
from tokenlane.tokens.caches.body_prefixes import (
    LEAST_BYTES,
    OPENING_BYTES,
    BodyMark,
    BodyPrefixCache,
    KnownBody,
)
from tokenlane.tokens.caches.listed_ids import PART_BYTES
from tokenlane.tokens.caches.prefixes import Prefix
from tokenlane.tokens.caches.shapes import Shape
from tokenlane.tokens.chat.forms import TEXTS, owners
from tokenlane.tokens.chat.residual import Residual, base_of, text_at
from tokenlane.tokens.keys import opening_seed
from tokenlane.tokens.tokenizer import Rendering

_BLANK: Final = b" \t\r\n"
_BETWEEN: Final = b", \t\r\n"
_NAME: Final = b'"messages"'
# Stands for a body's messages where the rest of it is read. A number: no list equals it.
_PLACE: Final = b"7"
# A name that is spelled otherwise has an escape for a letter of it.
_ESCAPE: Final = b"\\u00"
_ESCAPED_LETTER: Final = re.compile(rb"\\u00(?:6[157dD]|73)")
# The fields around the messages are read again in every turn, and kept for nothing else.
_AROUND_LIMIT_BYTES: Final = 64 * 1024
# Marks kept: of a system prompt that others share, and of the last turns.
_FIRST_MARKS: Final = 2
_LAST_MARKS: Final = 6

_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode


class BodySource(NamedTuple):
    """A body whose prompt is being made, kept for later bodies that begin with it. model: whose
    tokenizer reads it. keeps_ids: somebody gets the ids."""

    cache: BodyPrefixCache
    body: bytes
    model: str
    keeps_ids: bool


def root_of(options: bytes, salt: bytes, block_tokens: int) -> bytes:
    """Return all that decides a chat's ids and hashes beside its messages. options: a digest of its
    other fields."""
    return b"%d:%d:%b:%b" % (block_tokens, len(options), options, salt)


def learn(
    source: BodySource,
    request: Prompted,
    rendering: Rendering,
    prompt: Prefix,
    salt: bytes,
    block_tokens: int,
) -> None:
    """Keep a chat's body whose prompt was made from all of it, if it is known how it renders; of a
    short one what opens it. prompt: of all that is kept."""
    shape, residual = rendering.shape, rendering.residual
    if shape is None or residual is None or not isinstance(request, ChatBody):
        return
    body, messages = source.body, memoryview(request.messages)
    if len(body) < LEAST_BYTES and source.cache.find(body) is not None:
        return
    around_bytes = len(body) - messages.nbytes
    if around_bytes > _AROUND_LIMIT_BYTES or not source.cache.takes(len(body)):
        return
    start = _start(body, messages)
    end = start + messages.nbytes
    if start < 0 or not names_once(body[:start], body[end:]):
        return
    ends = ends_in_body(bytes(messages), start)
    marks = _marks(shape, residual, prompt, ends, block_tokens)
    seed = 0
    if len(body) < LEAST_BYTES:
        if not marks or marks[-1].at < OPENING_BYTES:
            return
        body = body[: marks[-1].at]
        seed = opening_seed(source.model, body)
    root = root_of(shape.name[0], salt, block_tokens)
    source.cache.put(
        KnownBody(
            source.cache.in_parts(body), body[: start + 1], is_plain(body[:start]),
            source.model, root, shape.name[1], residual,
            in_parts(prompt.ids, PART_BYTES) if source.keeps_ids else [], prompt.blocks,
            kept(marks), seed,
        )
    )  # fmt: skip


def _marks(
    shape: Shape, residual: Residual, prompt: Prefix, ends: list[int], block_tokens: int
) -> list[BodyMark]:
    """Return the marks of a body whose messages end there, where its prompt has cuts."""
    forms, texts, parts = shape.name[1], shape.texts, residual.parts
    cuts = [mark.chars for mark in prompt.marks]
    marks: list[BodyMark] = []
    chars, done, texts_before, counted = 0, 0, 0, 0
    for part, count in message_ends(parts, owners(forms)):
        said = [one if isinstance(one, str) else text_at(texts, one) for one in parts[done:part]]
        chars += sum(map(len, said))
        done = part
        texts_before += sum([TEXTS[form] for form in forms[counted:count]])
        counted = count
        shown = parts[part] if part < len(parts) else ""
        place = bisect_left(cuts, chars)
        if isinstance(shown, int) or place == len(cuts) or cuts[place] >= chars + len(shown):
            continue
        within, ids_bytes = cuts[place] - chars, prompt.marks[place].ids_bytes
        full_bytes = ids_bytes // (4 * block_tokens) * 4 * block_tokens
        if full_bytes:
            last = shown[:within] or said[-1]
            open_ids = prompt.ids[full_bytes:ids_bytes]
            marks.append(
                BodyMark(
                    ends[count - 1], count, texts_before, part, within, ids_bytes, open_ids,
                    last[-1:],
                )
            )  # fmt: skip
    return marks


def kept(marks: list[BodyMark]) -> list[BodyMark]:
    """Return those of the marks that are worth their place."""
    if len(marks) <= _FIRST_MARKS + _LAST_MARKS:
        return marks
    return marks[:_FIRST_MARKS] + marks[-_LAST_MARKS:]


def message_ends(
    parts: tuple[str | int, ...], owners: Sequence[int], first: int = 0
) -> list[tuple[int, int]]:
    """Return where messages end in a residual, or what follows of one: (parts before, messages
    before). Behind such a place no text from before it is shown, and before it none from behind
    it. owners: of each text from the first one on, the number of its message."""
    found: list[tuple[int, int]] = []
    highest = -1
    highs: list[int] = []
    for part in parts:
        if isinstance(part, int):
            highest = max(highest, owners[base_of(part) - first])
        highs.append(highest)
    lowest = 2**62
    for index in range(len(parts) - 1, -1, -1):
        part = parts[index]
        if isinstance(part, int):
            owner = owners[base_of(part) - first]
            if owner < lowest and highs[index] == owner:
                found.append((index + 1, owner + 1))
            lowest = min(lowest, owner)
    found.reverse()
    return found


def names_once(front: bytes, behind: bytes) -> bool:
    """Return whether a body names its messages once. front, behind: what stands around them."""
    if is_plain(front) and not may_name(behind):
        return True
    if len(front) + len(behind) > _AROUND_LIMIT_BYTES:
        return False
    try:
        named = json.loads(front + _PLACE + behind, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return False
    return [said for name, said in named if name == "messages"] == [int(_PLACE)]


def is_plain(front: bytes) -> bool:
    """Return whether what stands before a body's messages names them at its end, and nowhere
    else."""
    at = front.rfind(_NAME)
    if at < 0 or front[at + len(_NAME) :].strip(_BLANK) != b":":
        return False
    return not may_name(front[:at])


def may_name(around: bytes) -> bool:
    """Return whether messages may be named in this part of a body, be it within another field."""
    # `in` takes bytes for a number first, and raises and drops a TypeError.
    if around.find(_NAME) >= 0:
        return True
    return around.find(_ESCAPE) >= 0 and _ESCAPED_LETTER.search(around) is not None


def _start(body: bytes, messages: memoryview) -> int:
    """Return where a body has its messages; -1 where they do not stand behind their name."""
    at = body.find(_NAME)
    while at >= 0:
        start = body.find(b"[", at)
        if start >= 0 and body.startswith(messages, start):
            return start
        at = body.find(_NAME, at + 1)
    return -1


def ends_in_body(messages: bytes, start: int) -> list[int]:
    """Return where each message of a list ends, which begins at `start` of its body."""
    ends, at = [], 1
    for raw in _raws(messages):
        while messages[at] in _BETWEEN:
            at += 1
        at += memoryview(raw).nbytes
        ends.append(start + at)
    return ends

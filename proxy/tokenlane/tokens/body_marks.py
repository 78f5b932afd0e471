"""Where a body may be left: behind a message, if its rendering has an exact cut there, or within a
long text (`tokenlane.tokens.text_marks`).

Invariants:
- A mark stands at the first cut behind the last text of its message, and before the first text of
  the next one: what the template says in between may depend on what follows, and is compared. That
  of a system prompt beside the messages stands before those.
- Behind a mark no text from before it is shown, and before it none from behind it.
- Of repeated fields the last counts: a body is kept only if that is the one its marks are of.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from secrets import randbits
from typing import Final

import msgspec

from tokenlane.errors import RequestError
from tokenlane.parts import in_parts
from tokenlane.protocols.bodies import BODIES, CompletionBody, Kind, OtherBody, Prompted
from tokenlane.protocols.inspection import MESSAGES_FIELDS, inspect
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
from tokenlane.tokens.chat.dialects import system_digest
from tokenlane.tokens.chat.forms import TEXTS, owners
from tokenlane.tokens.chat.residual import Residual, base_of, text_at
from tokenlane.tokens.keys import opening_seed, prompt_bytes
from tokenlane.tokens.text_marks import longest_text, marks_within
from tokenlane.tokens.tokenizer import Rendering

_BLANK: Final = b" \t\r\n"
_BETWEEN: Final = b", \t\r\n"
_KINDS: Final = {body: kind for kind, body in BODIES.items()}
# Stands for a body's messages where the rest of it is read. No client can write it there.
_PLACE: Final = b'"%032x"' % randbits(128)
# A name that is spelled otherwise has an escape for a letter of it.
_ESCAPE: Final = b"\\u00"
# The fields around the messages are read again in every turn, and kept for nothing else.
_AROUND_LIMIT_BYTES: Final = 256 * 1024
# Marks kept: of a system prompt that others share, and of the last turns.
_FIRST_MARKS: Final = 2
_LAST_MARKS: Final = 6

_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
# How a body names its messages.
_NAMES: Final = {kind: b'"%b"' % name.encode() for kind, name in MESSAGES_FIELDS.items()}


class BodySource:
    """A body whose prompt is being made, kept for later bodies that begin with it. model: whose
    tokenizer reads it. keeps_ids: somebody gets the ids."""

    __slots__ = ("body", "cache", "keeps_ids", "model")

    def __init__(self, cache: BodyPrefixCache, body: bytes, model: str, *, keeps_ids: bool) -> None:
        self.cache = cache
        self.body = body
        self.model = model
        self.keeps_ids = keeps_ids


def root_of(options: bytes, system: bytes, salt: bytes, block_tokens: int) -> bytes:
    """Return all that decides a prompt's ids and hashes beside its messages. options: a digest of
    the other fields; system: of the system prompt, if that is one of them."""
    return b"%d:%d:%d:%b%b%b" % (block_tokens, len(options), len(system), options, system, salt)


def learn(
    source: BodySource,
    request: Prompted,
    rendering: Rendering,
    prompt: Prefix,
    salt: bytes,
    block_tokens: int,
) -> None:
    """Keep a body whose prompt was made from all of it, if it is known how it renders; of a short
    one what opens it. prompt: of all that is kept."""
    shape, residual = rendering.shape, rendering.residual
    kind = _KINDS.get(type(request))
    if shape is None or residual is None or kind is None or type(request) is CompletionBody:
        return
    body, messages = source.body, prompt_bytes(request)
    if len(body) < LEAST_BYTES and source.cache.find(kind, body) is not None:
        return
    around_bytes = len(body) - messages.nbytes
    if around_bytes > _AROUND_LIMIT_BYTES or not source.cache.takes(len(body)):
        return
    start = _start(body, messages, kind)
    front, behind = body[: start + 1], body[start + messages.nbytes :]
    if start < 0 or not is_list_read(kind, front[:-1], behind):
        return
    ends = ends_of(ends_in_body(messages, start), rendering.counts)
    marks, text = _marks(shape, residual, prompt, ends, block_tokens), ""
    long = longest_text(residual, shape.name[1], shape.texts)
    if long is not None:
        within = marks_within(
            request, long, shape.name[1], shape.texts, prompt, body, {0: start + 1} | ends,
            block_tokens,
        )  # fmt: skip
        if within:
            marks, text = sorted([*marks, *within]), shape.texts[long.number][: within[-1].chars]
    seed = 0
    if len(body) < LEAST_BYTES:
        if not marks or marks[-1].at < OPENING_BYTES:
            return
        body = body[: marks[-1].at]
        seed = opening_seed(kind, source.model, body)
    root = root_of(shape.name[0], system_digest(request), salt, block_tokens)
    source.cache.put(
        KnownBody(
            kind, source.cache.in_parts(body), front, is_plain(kind, front[:-1]),
            source.model, root, shape.name[1], residual,
            in_parts(prompt.ids, PART_BYTES) if source.keeps_ids else [], prompt.blocks,
            kept(marks), seed, text,
        )
    )  # fmt: skip


def _marks(
    shape: Shape, residual: Residual, prompt: Prefix, ends: Mapping[int, int], block_tokens: int
) -> list[BodyMark]:
    """Return the marks of a body, where its prompt has cuts. ends: as of `ends_of`."""
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
        if count not in ends:
            continue
        within, ids_bytes = cuts[place] - chars, prompt.marks[place].ids_bytes
        full_bytes = ids_bytes // (4 * block_tokens) * 4 * block_tokens
        if full_bytes:
            last = shown[:within] or said[-1]
            open_ids = prompt.ids[full_bytes:ids_bytes]
            marks.append(
                BodyMark(
                    ends[count], count, texts_before, part, within, ids_bytes, open_ids,
                    last[-1:],
                )
            )  # fmt: skip
    return marks


def kept(marks: list[BodyMark]) -> list[BodyMark]:
    """Return those of the marks that are worth their place: all of those within a text."""
    behind = [mark.at for mark in marks if not mark.opening]
    left = {*behind[:_FIRST_MARKS], *behind[-_LAST_MARKS:]}
    return [mark for mark in marks if mark.opening or mark.at in left]


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


def is_list_read(kind: Kind, front: bytes, behind: bytes) -> bool:
    """Return whether what stands in between is what is read for a body's messages."""
    if is_plain(kind, front) and not may_name(kind, behind):
        return True
    if len(front) + len(behind) > _AROUND_LIMIT_BYTES:
        return False
    try:
        request = inspect(kind, front + _PLACE + behind)
    except RequestError:
        return False
    return type(request) is not OtherBody and bytes(prompt_bytes(request)) == _PLACE


def is_plain(kind: Kind, front: bytes) -> bool:
    """Return whether what stands before a body's messages names them at its end, and nowhere
    else."""
    name = _NAMES[kind]
    at = front.rfind(name)
    if at < 0 or front[at + len(name) :].strip(_BLANK) != b":":
        return False
    return not may_name(kind, front[:at])


def may_name(kind: Kind, around: bytes) -> bool:
    """Return whether messages may be named in this part of a body, be it within another field."""
    # `in` takes bytes for a number first, and raises and drops a TypeError.
    return around.find(_NAMES[kind]) >= 0 or around.find(_ESCAPE) >= 0


def _start(body: bytes, messages: memoryview, kind: Kind) -> int:
    """Return where a body has its messages; -1 where they do not stand behind their name."""
    name, first = _NAMES[kind], bytes(messages[:1])
    at = body.find(name)
    while at >= 0:
        start = body.find(first, at + len(name))
        if start >= 0 and body.startswith(messages, start):
            return start
        at = body.find(name, at + 1)
    return -1


def ends_of(ends: list[int], counts: Sequence[int]) -> dict[int, int]:
    """Return where a body may be left, by how many of the prompt's messages stand before. ends: as
    of `ends_in_body`. counts: as of `Converted`; none of a chat."""
    counted = counts or range(len(ends))
    return {count: end for count, end in zip(counted, ends, strict=True) if count}


def ends_in_body(raw_messages: memoryview, start: int) -> list[int]:
    """Return where messages begin in their body, which is `start`, and where each of them ends; a
    text is one."""
    messages = bytes(raw_messages)
    if messages[:1] != b"[":
        return [start, start + len(messages)]
    ends, at = [start], 1
    for raw in _raws(messages):
        while messages[at] in _BETWEEN:
            at += 1
        at += memoryview(raw).nbytes
        ends.append(start + at)
    return ends

"""A chat whose body begins as an earlier one did: only the new part is read, rendered, encoded and
hashed.

Invariants:
- The new text is read as the end of a short body of the same fields: whatever vLLM or this gateway
  would refuse in it, or read in another way, is left to the general way (`None`).
- What a template makes of the known messages is shown, not hoped for: the shape's residual must say
  the same of them as the one that their rendering was made by (`continuation`), and each of its
  guards is asked of the new texts.
- The ids are those of the whole text.
"""

from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import msgspec

from tokenlane.errors import RequestError
from tokenlane.parts import BODY_PART_BYTES, RawBody, in_parts, parts_until, whole
from tokenlane.prompt import HASH_BYTES, Prompt
from tokenlane.protocols import prompt_fields
from tokenlane.protocols.bodies import ChatBody, Kind, Prompted, inspect
from tokenlane.protocols.prompt_fields import Unrenderable
from tokenlane.runtime.clock import perf_counter
from tokenlane.tokens.blocks import more_hashes
from tokenlane.tokens.caches.body_prefixes import BodyMark, BodyPrefixCache, KnownBody
from tokenlane.tokens.caches.listed_ids import PART_BYTES
from tokenlane.tokens.caches.prefixes import Prefix
from tokenlane.tokens.chat.conversation import told
from tokenlane.tokens.chat.residual import Continuations, Residual, says
from tokenlane.tokens.encode.encoder import Encoder
from tokenlane.tokens.encode.word_cuts import LOOP_CHARS
from tokenlane.tokens.keys import options_digest
from tokenlane.tokens.model_tokenizers import LoadedModel
from tokenlane.tokens.tokenizer import Rendering

_BLANK: Final = b" \t\r\n"
_NAME: Final = b'"messages"'
# JSON names can be spelled with escapes, and only with these.
_ESCAPE: Final = b"\\u"
# The fields around the messages are read again in every turn, and kept for nothing else.
_AROUND_LIMIT_BYTES: Final = 64 * 1024
# Marks kept: of a system prompt that others share, and of the last turns.
_FIRST_MARKS: Final = 2
_LAST_MARKS: Final = 6

_continuations = Continuations()
_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode


class BodySource(NamedTuple):
    """A body whose prompt is being made, kept for later bodies that begin with it. model: whose
    tokenizer reads it. keeps_ids: somebody gets the ids."""

    cache: BodyPrefixCache
    body: bytes
    model: str
    keeps_ids: bool


class NextTurn(NamedTuple):
    """The known part of a body, and what is new in it. tail: what is behind the known part, its
    last behind_bytes behind the messages. request: as the whole body reads, but for its messages,
    which are the new ones until `complete`. roles, texts: of the new messages. ends: where each of
    them ends in the body."""

    known: KnownBody
    mark: BodyMark
    body: RawBody
    tail: bytes
    behind_bytes: int
    request: ChatBody
    roles: tuple[str, ...]
    texts: list[str]
    ends: list[int]

    @property
    def is_kept(self) -> bool:
        """Whether the body is kept: others may go on from it."""
        return self.known.has_place_for(self.mark, len(self.tail))

    def complete(self) -> None:
        """Give the request the messages of the whole body."""
        body = memoryview(whole(self.body))[len(self.known.front) - 1 :]
        self.request.messages = msgspec.Raw(body[: len(body) - self.behind_bytes])


def _root(request: ChatBody, salt: bytes, block_tokens: int) -> bytes:
    """Return all that decides a chat's ids and hashes beside its messages."""
    options = options_digest(request, b"")
    return b"%d:%d:%b:%b" % (block_tokens, len(options), options, salt)


def begun(cache: BodyPrefixCache, body: RawBody) -> NextTurn | None:
    """Read what is new in a chat's body; None where all of it has to be read."""
    found = cache.find(body)
    turn = None if found is None else _read(body, *found)
    if turn is None:
        cache.misses += 1
    return turn


def _read(body: RawBody, known: KnownBody, mark: BodyMark, tail: bytes) -> NextTurn | None:
    rest = tail.lstrip(_BLANK)
    if rest[:1] == b",":
        rest = rest[1:].lstrip(_BLANK)
        if rest[:1] == b"]":
            return None
    elif rest[:1] != b"]":
        return None
    start = len(known.front) - 1
    short = known.front + rest
    try:
        request = inspect(Kind.CHAT, short)
        assert isinstance(request, ChatBody)
        messages = bytes(request.messages)
        told_messages = told(prompt_fields.decoded(request.messages)) if len(messages) > 2 else None
    except (RequestError, Unrenderable):
        return None
    end = start + len(messages)
    if short[start:end] != messages or not _is_plain(short[end:]):
        return None
    behind_bytes = len(short) - end
    ends: list[int] = []
    roles: tuple[str, ...] = ()
    texts: list[str] = []
    if told_messages is not None:
        roles, texts = told_messages
        ends = _message_ends(messages, mark.at + len(tail) - behind_bytes - len(messages))
    elif messages[1:-1].strip(_BLANK):
        return None
    return NextTurn(known, mark, body, tail, behind_bytes, request, roles, texts, ends)


def continued(
    turn: NextTurn,
    model: LoadedModel,
    limit_s: float,
    salt: bytes,
    block_tokens: int,
    *,
    keeps_ids: bool,
) -> tuple[Prompt, KnownBody | None] | None:
    """Return a body's prompt, and the body as later ones may know it if it is kept, both without
    ids unless they are; None where it is not known to follow from the known one, and where encoding
    would take longer than the limit."""
    known, mark, request = turn.known, turn.mark, turn.request
    if keeps_ids and not known.ids:
        return None
    encoder, speed = model.tokenizer.encoder, model.speed
    if known.root != _root(request, salt, block_tokens) or not encoder.cuts_anywhere:
        return None
    special = prompt_fields.flag(request.add_special_tokens, False)
    affixes = encoder.affixes if special else (b"", b"")
    roles = known.roles[: mark.messages] + turn.roles
    if affixes is None:
        return None
    for residual in model.caches.shapes.known((options_digest(request, b""), roles)):
        parts = _rest_of(turn, residual)
        if parts is None:
            continue
        cut = _pieces(turn, parts, encoder)
        chars = 0 if cut is None else sum(map(len, cut.pieces))
        if cut is None or speed.encode_s(chars) > limit_s or chars > LOOP_CHARS:
            return None
        began_s = perf_counter()
        try:
            ids = encoder.encode_each(cut.pieces)
        except RequestError:
            return None
        speed.learn_encode(chars, perf_counter() - began_s)
        ids[-1] += affixes[1]
        return _made(turn, residual, roles, cut, ids, block_tokens, keeps_ids)
    return None


def _rest_of(turn: NextTurn, residual: Residual) -> tuple[str | int, ...] | None:
    """Return what the residual shows behind the mark, if it is the new rendering."""
    first = turn.mark.messages
    way = _continuations.of(turn.known.residual, residual, turn.mark.part, first)
    if way is None:
        return None
    for guard in way.guards:
        for number in guard.texts:
            if says(turn.texts[number - first], guard.asks, guard.words) is not guard.holds:
                return None
    return way.parts


class _Pieces(NamedTuple):
    """A rendering behind its mark, cut where others may go on from. ends: before each piece but the
    first, how many parts and messages stand before it. lasts: the character before each."""

    pieces: list[str]
    ends: list[tuple[int, int]]
    lasts: list[str]


def _pieces(turn: NextTurn, parts: tuple[str | int, ...], encoder: Encoder) -> _Pieces | None:
    """Return the pieces, one of a body that is not kept; None where the rendering cannot be cut at
    the mark."""
    last, first = turn.mark.last, turn.mark.messages
    shown = [part if isinstance(part, str) else turn.texts[part - first] for part in parts]
    text = last + "".join(shown)
    at = len(last)
    if not encoder.is_cut(text, at):
        return None
    places, ends, done = [at], [(0, 0)], 0
    for part, messages in message_ends(parts) if turn.is_kept else ():
        at += sum([len(one) for one in shown[done:part]])
        done = part
        if at < len(text) and encoder.is_cut(text, at):
            places.append(at)
            ends.append((part, messages))
    pieces = [text[start:end] for start, end in pairwise([*places, len(text)])]
    return _Pieces(pieces, ends[1:], [text[place - 1 : place] for place in places[1:]])


def _made(
    turn: NextTurn,
    residual: Residual,
    roles: tuple[str, ...],
    cut: _Pieces,
    ids: list[bytes],
    block_tokens: int,
    keeps_ids: bool,
) -> tuple[Prompt, KnownBody | None]:
    """Return the prompt, and the body with marks of its own, if it is kept. ids: of each piece."""
    known, mark = turn.known, turn.mark
    block_bytes = 4 * block_tokens
    # From the mark's last full block on: what comes before is not touched.
    full_bytes = mark.ids_bytes // block_bytes * block_bytes
    own = b"".join((mark.open_ids, *ids))
    hashed_bytes = full_bytes // block_bytes * HASH_BYTES
    last_hash = known.blocks[hashed_bytes - HASH_BYTES : hashed_bytes]
    more = more_hashes(own, block_tokens, last_hash)
    blocks = b"".join((memoryview(known.blocks)[:hashed_bytes], more))
    listed = parts_until(known.ids, full_bytes, own, PART_BYTES) if keeps_ids else []
    prompt = Prompt((), blocks, block_tokens, (full_bytes + len(own)) // 4, tuple(listed))
    if not turn.is_kept:
        return prompt, None
    marks = [one for one in known.marks if one.at <= mark.at]
    places = accumulate(map(len, ids[:-1]), initial=mark.ids_bytes)
    next(places)
    for (part, messages), last, ids_bytes in zip(cut.ends, cut.lasts, places, strict=True):
        at = turn.ends[messages - mark.messages - 1]
        open_ids = own[ids_bytes // block_bytes * block_bytes - full_bytes : ids_bytes - full_bytes]
        marks.append(BodyMark(at, messages, mark.part + part, ids_bytes, open_ids, last))
    return prompt, KnownBody(
        parts_until(known.parts, mark.at, turn.tail, BODY_PART_BYTES), known.front, known.model,
        known.root, roles, residual, listed, blocks, _kept(marks),
    )  # fmt: skip


def learn(
    source: BodySource,
    request: Prompted,
    rendering: Rendering,
    prompt: Prefix,
    salt: bytes,
    block_tokens: int,
) -> None:
    """Keep a chat's body whose prompt was made from all of it, if it is known how it renders."""
    shape, residual = rendering.shape, rendering.residual
    if shape is None or residual is None or not isinstance(request, ChatBody):
        return
    body = source.body
    at = body.find(_NAME)
    messages = memoryview(request.messages)
    start = body.find(b"[", at) if at >= 0 else -1
    around_bytes = len(body) - messages.nbytes
    if start < 0 or around_bytes > _AROUND_LIMIT_BYTES or not source.cache.takes(len(body)):
        return
    end = start + messages.nbytes
    front, behind = body[:at], body[end:]
    between = body[at + len(_NAME) : start]
    if between.strip(_BLANK) != b":" or not (_is_plain(front) and _is_plain(behind)):
        return
    if not body.startswith(messages, start):
        return
    places = {mark.chars: mark.ids_bytes for mark in prompt.marks}
    ends = _message_ends(bytes(messages), start)
    marks: list[BodyMark] = []
    parts, chars, done = residual.parts, 0, 0
    for part, count in message_ends(parts):
        chars += sum(
            [
                len(one) if isinstance(one, str) else len(shape.texts[one])
                for one in parts[done:part]
            ]
        )
        done = part
        ids_bytes = places.get(chars, 0)
        full_bytes = ids_bytes // (4 * block_tokens) * 4 * block_tokens
        if full_bytes:
            last = shape.texts[count - 1][-1:]
            open_ids = prompt.ids[full_bytes:ids_bytes]
            marks.append(BodyMark(ends[count - 1], count, part, ids_bytes, open_ids, last))
    root = _root(request, salt, block_tokens)
    source.cache.put(
        KnownBody(
            source.cache.in_parts(body), body[: start + 1], source.model, root, shape.name[1],
            residual, in_parts(prompt.ids, PART_BYTES) if source.keeps_ids else [], prompt.blocks,
            _kept(marks),
        )
    )  # fmt: skip


def _kept(marks: list[BodyMark]) -> list[BodyMark]:
    """Return those of the marks that are worth their place."""
    if len(marks) <= _FIRST_MARKS + _LAST_MARKS:
        return marks
    return marks[:_FIRST_MARKS] + marks[-_LAST_MARKS:]


def message_ends(parts: tuple[str | int, ...]) -> list[tuple[int, int]]:
    """Return where messages end in a residual, or what follows of one: (parts before, messages
    before). Behind such a place no text from before it is shown, and before it none from behind
    it."""
    found: list[tuple[int, int]] = []
    highest = -1
    highs: list[int] = []
    for part in parts:
        if isinstance(part, int) and part > highest:
            highest = part
        highs.append(highest)
    lowest = 2**62
    for index in range(len(parts) - 1, -1, -1):
        part = parts[index]
        if isinstance(part, int):
            if part < lowest and highs[index] == part:
                found.append((index + 1, part + 1))
            lowest = min(lowest, part)
    found.reverse()
    return found


def _is_plain(around: bytes) -> bool:
    """Return whether this part of a body, beside its messages, names no messages."""
    return _NAME not in around and _ESCAPE not in around


def _message_ends(messages: bytes, start: int) -> list[int]:
    """Return where each message of a list ends, which begins at `start` of its body."""
    ends, at = [], 1
    for raw in _raws(messages):
        one = bytes(raw)
        at = messages.index(one, at) + len(one)
        ends.append(start + at)
    return ends

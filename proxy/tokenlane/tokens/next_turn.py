"""A conversation whose body begins as an earlier one did: only the new part is read, rendered,
encoded and hashed.

Invariants:
- The new text is read as the end of a short body of the same fields: whatever vLLM or this gateway
  would refuse in it, or read in another way, is left to the general way (`None`).
- What a template makes of the known messages is shown, not hoped for: the shape's residual must say
  the same of them as the one that their rendering was made by (`continuation`), and each of its
  guards is asked of the new texts.
- The ids are those of the whole text.
"""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Final

import msgspec

from tokenlane.errors import RequestError, Unrenderable
from tokenlane.parts import BODY_PART_BYTES, RawBody, parts_until, whole
from tokenlane.prompt import HASH_BYTES, Prompt
from tokenlane.protocols import prompt_fields
from tokenlane.protocols.bodies import Chatting, CompletionBody, Kind, OtherBody
from tokenlane.protocols.inspection import MESSAGES_FIELDS, inspect
from tokenlane.runtime.clock import perf_counter
from tokenlane.tokens.blocks import more_hashes
from tokenlane.tokens.body_marks import (
    BodySource,
    ends_in_body,
    ends_of,
    is_list_read,
    kept,
    may_name,
    message_ends,
    root_of,
)
from tokenlane.tokens.caches.body_prefixes import (
    LEAST_BYTES,
    BodyMark,
    BodyPrefixCache,
    KnownBody,
)
from tokenlane.tokens.caches.listed_ids import PART_BYTES
from tokenlane.tokens.chat.dialects import messages_behind, system_digest
from tokenlane.tokens.chat.forms import TEXTS, forms_of, owners, texts_of
from tokenlane.tokens.chat.residual import Continuations, Residual, Unknown, says, text_at
from tokenlane.tokens.chat.runs import EarlierRun
from tokenlane.tokens.encode.encoder import Encoder
from tokenlane.tokens.encode.word_cuts import LOOP_CHARS, PART_CHARS
from tokenlane.tokens.keys import options_digest, prompt_bytes
from tokenlane.tokens.ladder import NO_LIMIT_S
from tokenlane.tokens.model_tokenizers import LoadedModel
from tokenlane.tokens.text_marks import PLACE

_BLANK: Final = b" \t\r\n"
# What a template takes where it is run with the texts unknown, and what it takes to go on from
# where it was run before.
_RUN_S_PER_MESSAGE: Final = 20e-6
_COPY_S_PER_MESSAGE: Final = 1e-6
# What it takes to read all of a body, and to render it.
_READ_S_PER_BYTE: Final = 14e-9

_continuations = Continuations()


class NextTurn:
    """The known part of a body, and what is new in it. tail: what is behind the known part, its
    last behind_bytes behind the messages. request: as the whole body reads, but for its messages,
    which are the new ones until `complete`. options, system: digests of all of it but those.
    forms, texts: of the new messages, the first of which is known in part where the mark stands
    within a text; texts are whole. all_forms: of all messages of the body. is_kept: others may go
    on from it. ends: where each of the new messages ends in the body, if that is kept."""

    def __init__(
        self,
        known: KnownBody,
        mark: BodyMark,
        body: RawBody,
        tail: bytes,
        behind_bytes: int,
        request: Chatting,
        options: bytes,
        system: bytes,
        forms: tuple[str, ...],
        texts: list[str],
        ends: dict[int, int],
    ) -> None:
        self.known: Final = known
        self.mark: Final = mark
        self.body: Final = body
        self.tail: Final = tail
        self.behind_bytes: Final = behind_bytes
        self.request: Final = request
        self.options: Final = options
        self.system: Final = system
        self.forms: Final = forms
        self.texts: Final = texts
        self.ends: Final = ends
        self.all_forms: Final = known.forms[: mark.messages] + forms
        self.is_kept: Final = known.has_place_for(mark, len(self.all_forms), len(tail))

    def complete(self) -> None:
        """Give the request the messages of the whole body."""
        body = memoryview(whole(self.body))[len(self.known.front) - 1 :]
        messages = msgspec.Raw(body[: len(body) - self.behind_bytes])
        setattr(self.request, MESSAGES_FIELDS[self.known.kind], messages)


def begun(cache: BodyPrefixCache, kind: Kind, body: RawBody) -> NextTurn | None:
    """Read what is new in a conversation's body; None where all of it has to be read."""
    found = cache.find(kind, body)
    turn = None if found is None else _read(body, *found)
    if turn is None:
        cache.misses += 1
    return turn


def _read(body: RawBody, known: KnownBody, mark: BodyMark, tail: bytes) -> NextTurn | None:
    start, kind = len(known.front) - 1, known.kind
    if mark.opening:
        short = b"%b%b%b%b" % (known.front, mark.opening, PLACE.encode(), tail)
    elif mark.at == start:
        short = known.front[:start] + tail
    else:
        rest = tail.lstrip(_BLANK)
        if rest[:1] == b",":
            rest = rest[1:].lstrip(_BLANK)
            if rest[:1] == b"]":
                return None
        elif rest[:1] != b"]":
            return None
        short = known.front + rest
    try:
        request = inspect(kind, short)
        assert type(request) is not CompletionBody
        assert type(request) is not OtherBody
        raw = prompt_bytes(request)
        messages = bytes(raw)
        given = prompt_fields.decoded(msgspec.Raw(raw)) if messages != b"[]" else []
        given, counts = messages_behind(request, given)
        forms = forms_of(given)
        texts = [] if forms is None else texts_of(given, forms)
        if mark.opening:
            if forms is None or forms[0] != known.forms[mark.messages]:
                return None
            said = texts[mark.split]
            if not said.startswith(PLACE):
                return None
            texts[mark.split] = known.text[: mark.chars] + said[len(PLACE) :]
        system = system_digest(request)
    except (RequestError, Unrenderable):
        return None
    end = start + len(messages)
    if short[start:end] != messages:
        return None
    behind = short[end:]
    is_plain = known.is_plain and not may_name(kind, behind)
    if not is_plain and not is_list_read(kind, short[:start], behind):
        return None
    behind_bytes = len(behind)
    ends: dict[int, int] = {}
    if forms is None:
        if messages[1:-1].strip(_BLANK):
            return None
    elif known.has_place_for(mark, mark.messages + len(forms), len(tail)):
        first = mark.at + len(tail) - behind_bytes - len(messages)
        ends = ends_of(ends_in_body(raw, first), counts)
    options = options_digest(request)
    return NextTurn(
        known, mark, body, tail, behind_bytes, request, options, system, forms or (), texts, ends
    )


def continued(
    turn: NextTurn,
    model: LoadedModel,
    limit_s: float,
    salt: bytes,
    block_tokens: int,
    source: BodySource,
) -> Prompt | None:
    """Return a body's prompt, and keep the body as later ones may know it; None where it is not
    known to follow from the known one, and where making it would take longer than the limit."""
    known, request, keeps_ids = turn.known, turn.request, source.keeps_ids
    if keeps_ids and not known.ids:
        return None
    encoder, speed = model.tokenizer.encoder, model.speed
    root = root_of(turn.options, turn.system, salt, block_tokens)
    if known.root != root or not encoder.cuts_anywhere:
        return None
    special = prompt_fields.flag(request.add_special_tokens, False)
    affixes = encoder.affixes if special else (b"", b"")
    if affixes is None:
        return None
    most_chars = PART_CHARS if limit_s == NO_LIMIT_S else LOOP_CHARS
    for residual in _residuals(turn, model, limit_s):
        parts = _rest_of(turn, residual)
        if parts is None:
            continue
        cut = _pieces(turn, parts, encoder)
        chars = 0 if cut is None else sum(map(len, cut.pieces))
        if cut is None or speed.encode_s(chars) > limit_s or chars > most_chars:
            return None
        began_s = perf_counter()
        try:
            ids = encoder.encode_each(cut.pieces)
        except RequestError:
            return None
        speed.learn_encode(chars, perf_counter() - began_s)
        ids[-1] += affixes[1]
        prompt, body = _made(turn, residual, cut, ids, block_tokens, keeps_ids)
        source.cache.keep(body, known, turn.mark)
        return prompt
    return None


def run_s(turn: NextTurn) -> float:
    """Return the predicted CPU seconds to run the template with the texts unknown."""
    known, new = turn.mark.messages, len(turn.forms)
    if turn.known.residual.checkpoints:
        return known * _COPY_S_PER_MESSAGE + (new + 5) * _RUN_S_PER_MESSAGE
    return (known + new) * _RUN_S_PER_MESSAGE


def _residuals(turn: NextTurn, model: LoadedModel, limit_s: float) -> Iterator[Residual]:
    """Yield what may be the rendering of the whole conversation: of others of its shape, and what
    the template makes of it, unless that takes longer than the limit."""
    known, shapes, forms = turn.known, model.caches.shapes, turn.all_forms
    if forms == known.forms:
        yield known.residual
    name = (turn.options, forms)
    yield from shapes.known(name)
    if len(turn.body) < LEAST_BYTES:
        return
    whole_s, messages = len(turn.body) * _READ_S_PER_BYTE, turn.mark.messages
    if run_s(turn) > min(limit_s, whole_s):
        return
    may_begin = len(forms) * _RUN_S_PER_MESSAGE <= whole_s
    before = EarlierRun(known.residual, messages, messages == len(known.forms), may_begin)
    try:
        residual = model.tokenizer.residual(turn.request, turn.options, forms, turn.texts, before)
    except (RequestError, Unknown, Unrenderable):
        return
    shapes.grown(name, residual)
    yield residual


def _rest_of(turn: NextTurn, residual: Residual) -> tuple[str | int, ...] | None:
    """Return what the residual shows behind the mark, if it is the new rendering."""
    mark = turn.mark
    first = mark.texts
    way = _continuations.of(turn.known.residual, residual, mark.part, mark.within, first)
    if way is None:
        return None
    for guard in way.guards:
        for number in guard.texts:
            text = text_at(turn.texts, number, first)
            if says(text, guard.asks, guard.words) is not guard.holds:
                return None
    return way.parts


class _Pieces:
    """A rendering behind its mark, cut where others may go on from. ends: before each piece but the
    first, how many parts, characters of the next one and messages stand before it. lasts: the
    character before each."""

    def __init__(
        self, pieces: list[str], ends: list[tuple[int, int, int]], lasts: list[str]
    ) -> None:
        self.pieces: Final = pieces
        self.ends: Final = ends
        self.lasts: Final = lasts


def _pieces(turn: NextTurn, parts: tuple[str | int, ...], encoder: Encoder) -> _Pieces | None:
    """Return the pieces, one of a body that is not kept; None where the rendering cannot be cut at
    the mark."""
    last, first = turn.mark.last, turn.mark.texts
    shown = [part if isinstance(part, str) else text_at(turn.texts, part, first) for part in parts]
    within = turn.mark.within if turn.mark.opening else 0
    if within:
        begun, chars = shown[0], turn.mark.chars
        is_plain = begun is turn.texts[turn.mark.split]
        if not is_plain and not begun.startswith(turn.known.text[chars - within : chars]):
            return None
        shown[0] = begun[within:]
    text = last + "".join(shown)
    at = len(last)
    if not encoder.is_cut(text, at, words=within > 0):
        return None
    places, ends, done = [at], [(0, 0, 0)], 0
    for part, messages in message_ends(parts, owners(turn.forms), first) if turn.is_kept else ():
        at += sum([len(one) for one in shown[done:part]])
        done = part
        said = parts[part] if part < len(parts) and messages in turn.ends else 0
        cuts = encoder.starts(text, at, at + len(said)) if isinstance(said, str) else []
        if cuts:
            places.append(cuts[0])
            ends.append((part, cuts[0] - at, messages))
    pieces = [text[start:end] for start, end in pairwise([*places, len(text)])]
    return _Pieces(pieces, ends[1:], [text[place - 1 : place] for place in places[1:]])


def _made(
    turn: NextTurn,
    residual: Residual,
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
    for (part, within, messages), last, ids_bytes in zip(cut.ends, cut.lasts, places, strict=True):
        open_ids = own[ids_bytes // block_bytes * block_bytes - full_bytes : ids_bytes - full_bytes]
        texts = mark.texts + sum([TEXTS[form] for form in turn.forms[:messages]])
        marks.append(
            BodyMark(
                turn.ends[messages], mark.messages + messages, texts, mark.part + part, within,
                ids_bytes, open_ids, last,
            )
        )  # fmt: skip
    return prompt, KnownBody(
        known.kind, parts_until(known.parts, mark.at, turn.tail, BODY_PART_BYTES),
        known.front, known.is_plain, known.model, known.root, turn.all_forms, residual, listed,
        blocks, kept(marks), 0, known.text if any(one.opening for one in marks) else "",
    )  # fmt: skip

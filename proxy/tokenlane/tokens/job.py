"""One tokenization job: render, encode and hash, as steps that can be run anywhere.

Invariants:
- The steps are the same whoever runs them: a thread runs them through, the loop a few at a time.
- A job knows no loop, no thread and no queue, and leaves no list of ids behind.
- Whatever a prompt makes a job raise is its result (`Tokenized.failed`), wherever it ran.
- What the caches know is taken at exact cuts only: the ids are those of the whole text.
"""

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import accumulate
from typing import NamedTuple

from tokenlane.errors import RequestError, Unrenderable
from tokenlane.prompt import HASH_BYTES, Prompt
from tokenlane.protocols import context_window, prompt_fields
from tokenlane.protocols.bodies import Chatting, CompletionBody, Prompted
from tokenlane.protocols.context_window import NO_LIMIT
from tokenlane.tokens import text_marks
from tokenlane.tokens.blocks import block_hashes
from tokenlane.tokens.body_marks import BodySource, learn
from tokenlane.tokens.caches.prefixes import KnownPrefix, Mark, Prefix, marked, replaced
from tokenlane.tokens.caches.segments import stretches
from tokenlane.tokens.encode.word_cuts import PART_CHARS
from tokenlane.tokens.keys import render_size_bytes
from tokenlane.tokens.ladder import IDS_GIL_S_PER_BYTE, NO_LIMIT_S, JobView
from tokenlane.tokens.model_tokenizers import LoadedModel
from tokenlane.tokens.tokenizer import Rendering

log = logging.getLogger(__name__)

Steps = Generator[None, None, Prompt]

# Shorter texts are not kept as prefixes: encoding them again costs no more than looking for them.
_PREFIX_CHARS = 1024
# Blocks hashed per step: about 1 ms.
_STEP_BLOCKS = 8192


class Tokenized(NamedTuple):
    """A job's result. error: the client's answer, or why the ids cannot be made. seconds: how long
    it took on the clock. queue_s: how long it waited to begin."""

    prompt: Prompt | None
    error: RequestError | Unrenderable | None
    seconds: float
    queue_s: float = 0.0

    @classmethod
    def failed(cls, problem: BaseException, seconds: float) -> "Tokenized":
        """Make the result of a job that ended with this exception. An unforeseen one is left to the
        replica."""
        if isinstance(problem, RequestError | Unrenderable):
            # The traceback's frames refer to the prompt, and one of them to the result.
            return cls(None, problem.with_traceback(None), seconds)
        if isinstance(problem, KeyboardInterrupt | SystemExit):
            raise problem
        log.error("a prompt could not be tokenized", exc_info=problem)
        return cls(None, Unrenderable("failed"), seconds)


class _Source(NamedTuple):
    """The text that a sequence was made from, for those that begin with it; see `Prefix`."""

    root: bytes
    text: str
    found: KnownPrefix | None
    marks: list[Mark]


class _Sequence(NamedTuple):
    """Packed ids of one prompt."""

    ids: bytes
    source: _Source | None = None


@dataclass(slots=True, eq=False)
class TokenJob:
    """A prompt to make ids of. size_bytes: raw JSON bytes; render_bytes: as many of messages as
    would take as long to render; block_tokens: per hashed block; salt: what its hashes start from;
    limit_tokens: of the context, where prompts over it are refused; tenant: whose it is, "" where
    there are none; source: the body it came in, where others may begin as it does; text: what
    another rung has rendered already."""

    model: LoadedModel
    body: Prompted
    _: KW_ONLY
    key: bytes
    size_bytes: int
    block_tokens: int
    salt: bytes = b""
    limit_tokens: int = NO_LIMIT
    tenant: str = ""
    source: BodySource | None = None
    render_bytes: int = field(init=False)
    text: str | None = field(default=None, init=False)
    # CPU seconds of the render, and of encoding and hashing what was not known.
    _render_s: float = field(default=0.0, init=False)
    _encode_s: float = field(default=0.0, init=False)
    _encoded_chars: int = field(default=0, init=False)
    _seconds: float = field(default=0.0, init=False)
    _running: Steps | None = field(default=None, init=False)
    _rendering: Rendering | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.render_bytes = render_size_bytes(self.body, self.size_bytes)

    def view(self, loop_late_s: float) -> JobView:
        """Return it as the ladder sees it. loop_late_s: how late the loop is."""
        size_bytes, speed = self.size_bytes, self.model.speed
        render_s = speed.render_s(self.render_bytes)
        # Text that can be cut is encoded stretch by stretch, and no call holds the GIL for long.
        cuts = self.model.tokenizer.encoder.cuts
        ids_gil_s = 0.0 if cuts else size_bytes * IDS_GIL_S_PER_BYTE
        total_s = render_s + speed.encode_s(size_bytes)
        return JobView(size_bytes, render_s, total_s, max(render_s, ids_gil_s), loop_late_s)

    def steps(self, piece_limit_s: float = NO_LIMIT_S) -> Steps:
        """Do a step per `next` and return the prompt. Raise RequestError as vLLM would, and
        Unrenderable, also for a piece predicted to take longer than `piece_limit_s`."""
        body = self.body
        if type(body) is CompletionBody:
            sequences = yield from self._completions(body, piece_limit_s)
        else:
            sequences = [(yield from self._chat(body, piece_limit_s))]
        yield
        blocks = yield from self._hashed(sequences[0])
        prompt = tuple(sequence.ids for sequence in sequences)
        return Prompt(prompt, blocks, self.block_tokens, sum(map(len, prompt)) // 4)

    def rendered(self, body: Chatting, *, hasty: bool) -> str:
        """Return the text of its conversation. hasty: the loop waits. Raise RequestError and
        Unrenderable."""
        self._rendering = self.model.tokenizer.rendering(
            body, self.model.caches.shapes, hasty=hasty, continues=self.source is not None
        )
        return self._rendering.text

    def run(self) -> Tokenized:
        """Return all steps at once."""
        result = self.advance(NO_LIMIT_S)
        assert result is not None
        return result

    def advance(self, slice_s: float) -> Tokenized | None:
        """Do steps for so many seconds, in whatever thread calls; None if there are more. At the
        end, learn from the CPU time that they took."""
        began_s = time.perf_counter()
        if self._running is None:
            self._running = self.steps()
        prompt, error = None, None
        try:
            while True:
                next(self._running)
                if time.perf_counter() - began_s >= slice_s:
                    self._seconds += time.perf_counter() - began_s
                    return None
        except StopIteration as end:
            prompt = end.value
        except BaseException as problem:  # noqa: BLE001 - it is the result
            error = Tokenized.failed(problem, 0.0).error
        self.model.speed.learn_render(self.render_bytes, self._render_s)
        self.model.speed.learn_encode(self._encoded_chars, self._encode_s)
        return Tokenized(prompt, error, self._seconds + time.perf_counter() - began_s)

    def _chat(self, body: Chatting, limit_s: float) -> Generator[None, None, _Sequence]:
        if prompt_fields.value(body.truncate_prompt_tokens) is not None:
            self._within(self.size_bytes, limit_s)
            return _Sequence(self.model.tokenizer.chat_ids(body))
        special = prompt_fields.flag(body.add_special_tokens, False)
        text = self.text
        if text is None:
            began_s = time.thread_time()
            text = self.rendered(body, hasty=limit_s != NO_LIMIT_S)
            self._render_s = time.thread_time() - began_s
        yield
        return (yield from self._sequence(text, special, limit_s, besides=self._places(text)))

    def _places(self, text: str) -> list[int]:
        """Return where the text is cut for bodies that leave this one within its longest text."""
        made, encoder = self._rendering, self.model.tokenizer.encoder
        if self.source is None or made is None or not encoder.cuts_words:
            return []
        if made.shape is None or made.residual is None:
            return []
        long = text_marks.longest_text(made.residual, made.shape.name[1], made.shape.texts)
        return [] if long is None else text_marks.places(encoder, text, long)

    def _completions(
        self, body: CompletionBody, limit_s: float
    ) -> Generator[None, None, list[_Sequence]]:
        if prompt_fields.value(body.truncate_prompt_tokens) is not None:
            self._within(self.size_bytes, limit_s)
            return [_Sequence(ids) for ids in self.model.tokenizer.completion_ids(body)]
        special = prompt_fields.flag(body.add_special_tokens, True)
        prompts = self.model.tokenizer.prompts(body)
        sequences = []
        for prompt in prompts:
            yield
            if isinstance(prompt, str):
                words = self.model.tokenizer.encoder.cuts_words
                sequences.append((yield from self._sequence(prompt, special, limit_s, words)))
            else:
                sequences.append(_Sequence(prompt))
        return sequences

    def _encoded(self, chars: int, began_s: float) -> None:
        self._encoded_chars += chars
        self._encode_s += time.thread_time() - began_s

    def _sequence(
        self,
        text: str,
        special: bool,
        limit_s: float,
        words: bool = False,
        besides: Sequence[int] = (),
    ) -> Generator[None, None, _Sequence]:
        encoder = self.model.tokenizer.encoder
        if encoder.least_tokens(text) > self.limit_tokens:
            raise context_window.too_long(self.limit_tokens, 0, cut=True)
        affixes = encoder.affixes if special else (b"", b"")
        if affixes is None:
            self._within(len(text), limit_s)
            began_s = time.thread_time()
            ids = encoder.encode_apart(text, add_special_tokens=special)
            self._encoded(len(text), began_s)
            return _Sequence(ids)
        if not encoder.cuts and not words:
            made = yield from self._apart(encoder.begun(text), limit_s)
            return _Sequence(b"".join((affixes[0], *made, affixes[1])))
        root, found, at = b"", None, 0
        parts: list[bytes | memoryview] = [affixes[0]]
        if len(text) >= _PREFIX_CHARS:
            root = b"%d:%d:%b" % (special, self.block_tokens, self.salt)
            found = self.model.caches.prefixes.find(encoder, root, text, words=words)
            if found is not None:
                at = found.mark.chars
                parts = [memoryview(found.prefix.ids)[: found.mark.ids_bytes]]
            yield
        starts: list[int] = []
        for places, pieces in stretches(encoder, text, at, words=words, besides=besides):
            starts += places
            parts += yield from self._pieces(pieces, limit_s)
            yield
        # The bytes of ids before each piece, those that specials put before the text included.
        before = list(accumulate(map(len, parts)))[:-1]
        ids = b"".join((*parts, affixes[1]))
        if not root:
            return _Sequence(ids)
        return _Sequence(ids, _Source(root, text, found, marked(root, text, found, starts, before)))

    def _pieces(self, pieces: list[str], limit_s: float) -> Generator[None, None, list[bytes]]:
        """Make the ids of each piece: take known ones, and encode the others in steps that keep the
        limit."""
        segments = self.model.caches.segments
        known = segments.get(pieces)
        wanted = zip(pieces, known, strict=True)
        missing = list(dict.fromkeys(piece for piece, ids in wanted if ids is None))
        if not missing:
            return [ids for ids in known if ids is not None]
        fresh: dict[str, bytes] = {}
        if max(map(len, missing)) > PART_CHARS:
            for piece in missing:
                if len(piece) > PART_CHARS:
                    fresh[piece] = b"".join((yield from self._apart(piece, limit_s)))
            missing = [piece for piece in missing if piece not in fresh]
        self._within(max(map(len, missing), default=0), limit_s)
        for batch in self._batches(missing, limit_s):
            yield
            began_s = time.thread_time()
            made = self.model.tokenizer.encoder.encode_each(batch)
            self._encoded(sum(map(len, batch)), began_s)
            segments.put(batch, made)
            fresh.update(zip(batch, made, strict=True))
        return [
            fresh[piece] if ids is None else ids for piece, ids in zip(pieces, known, strict=True)
        ]

    def _apart(self, piece: str, limit_s: float) -> Generator[None, None, list[bytes]]:
        """Make the ids of a piece of any length, in parts."""
        encoder, made = self.model.tokenizer.encoder, []
        for part in encoder.apart(piece):
            self._within(len(part), limit_s)
            yield
            began_s = time.thread_time()
            made.append(encoder.encode_piece(part))
            self._encoded(len(part), began_s)
        return made

    def _batches(self, pieces: list[str], limit_s: float) -> Iterator[list[str]]:
        """Yield `pieces` in runs predicted to take no longer than the limit, one piece at least."""
        batch: list[str] = []
        chars = 0
        for piece in pieces:
            if batch and self.model.speed.encode_s(chars + len(piece)) > limit_s:
                yield batch
                batch, chars = [], 0
            batch.append(piece)
            chars += len(piece)
        if batch:
            yield batch

    def _hashed(self, sequence: _Sequence) -> Generator[None, None, bytes]:
        """Make the block hashes of a sequence, which becomes a prefix for others."""
        ids, source, blocks = sequence.ids, sequence.source, b""
        if source is not None and source.found is not None:
            prefix, mark = source.found
            full = mark.ids_bytes // 4 // self.block_tokens
            blocks = prefix.blocks[: full * HASH_BYTES]
        done = len(blocks) // HASH_BYTES * self.block_tokens * 4
        for stop in range(done, len(ids), _STEP_BLOCKS * self.block_tokens * 4):
            end = stop + _STEP_BLOCKS * self.block_tokens * 4
            began_s = time.thread_time()
            blocks = block_hashes(ids, self.block_tokens, self.salt, blocks, end)
            self._encoded(0, began_s)
            yield
        if source is not None:
            new = Prefix(source.root, source.text, ids, blocks, source.marks)
            self.model.caches.prefixes.put(new, replaced(source.found))
            if self.source is not None and self._rendering is not None:
                learn(self.source, self.body, self._rendering, new, self.salt, self.block_tokens)
        return blocks

    def _within(self, piece_bytes: int, limit_s: float) -> None:
        if self.model.speed.encode_s(piece_bytes) > limit_s:
            raise Unrenderable("uncut")

"""One tokenization job: render, encode and hash, as steps that can be run anywhere.

Invariants:
- The steps are the same whoever runs them: a thread runs them through, the loop a few at a time.
- A job knows no loop, no thread and no queue, and leaves no list of ids behind.
"""

import time
from collections.abc import Generator
from typing import NamedTuple

from proxy.body import ChatBody, CompletionBody
from proxy.errors import RequestError
from proxy.model import Prompt
from proxy.routing.blocks import block_hashes
from proxy.tokens import fields
from proxy.tokens.fields import Unrenderable
from proxy.tokens.ladder import Speed
from proxy.tokens.tokenizer import Tokenizer

Steps = Generator[None, None, Prompt]


class Tokenized(NamedTuple):
    """A job's result. error: the answer the client gets, or why the ids cannot be known.
    seconds: how long it took on the clock."""

    prompt: Prompt | None
    error: RequestError | Unrenderable | None
    seconds: float


class TokenJob:
    """A prompt to make ids of. size_bytes: raw JSON bytes; block_tokens: per hashed
    block; salt: what its hashes start from."""

    __slots__ = (
        "_block_tokens",
        "_body",
        "_rendered_s",
        "_salt",
        "_speed",
        "_tokenizer",
        "key",
        "size_bytes",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        speed: Speed,
        body: ChatBody | CompletionBody,
        *,
        key: bytes,
        size_bytes: int,
        block_tokens: int,
        salt: bytes = b"",
    ) -> None:
        self._tokenizer = tokenizer
        self._speed = speed
        self._body = body
        self._block_tokens = block_tokens
        self._salt = salt
        self._rendered_s = 0.0
        self.key = key
        self.size_bytes = size_bytes

    def steps(self, piece_limit_s: float = float("inf")) -> Steps:
        """Does a step per `next` and returns the prompt. Raises RequestError as vLLM would, and
        Unrenderable, also for a piece predicted to take longer than `piece_limit_s`."""
        body = self._body
        if isinstance(body, ChatBody):
            sequences = [(yield from self._chat(body, piece_limit_s))]
        else:
            sequences = yield from self._completions(body, piece_limit_s)
        yield
        blocks = block_hashes(sequences[0], self._block_tokens, self._salt) if sequences else b""
        tokens = sum(map(len, sequences)) // 4
        return Prompt(tuple(sequences), blocks, self._block_tokens, tokens)

    def run(self) -> Tokenized:
        """All steps at once; learns from how long they took."""
        started_s = time.perf_counter()
        started_cpu_s = self._rendered_s = time.thread_time()
        result = finish(self.steps(), started_s)
        if result.prompt is not None:
            self._speed.learn(
                self.size_bytes,
                self._rendered_s - started_cpu_s,
                time.thread_time() - self._rendered_s,
            )
        return result

    def _chat(self, body: ChatBody, limit_s: float) -> Generator[None, None, bytes]:
        if fields.value(body.truncate_prompt_tokens) is not None:
            self._within(self.size_bytes, limit_s)
            return self._tokenizer.chat_ids(body)
        text = self._tokenizer.chat_text(body)
        special = fields.flag(body.add_special_tokens, False)
        self._rendered_s = time.thread_time()
        yield
        return (yield from self._encoded(text, special, limit_s))

    def _completions(
        self, body: CompletionBody, limit_s: float
    ) -> Generator[None, None, list[bytes]]:
        if fields.value(body.truncate_prompt_tokens) is not None:
            self._within(self.size_bytes, limit_s)
            return list(self._tokenizer.completion_ids(body))
        special = fields.flag(body.add_special_tokens, True)
        prompts = self._tokenizer.prompts(body)
        self._rendered_s = time.thread_time()
        sequences = []
        for prompt in prompts:
            yield
            if isinstance(prompt, str):
                sequences.append((yield from self._encoded(prompt, special, limit_s)))
            else:
                sequences.append(prompt)
        return sequences

    def _encoded(self, text: str, special: bool, limit_s: float) -> Generator[None, None, bytes]:
        encoder = self._tokenizer.encoder
        affixes = encoder.affixes if special else (b"", b"")
        pieces = encoder.pieces(text) if affixes is not None else [text]
        self._within(max(map(len, pieces)), limit_s)
        if affixes is None:
            return encoder.encode(text, add_special_tokens=special)
        ids = [affixes[0]]
        for piece in pieces:
            ids.append(encoder.encode_piece(piece))
            yield
        ids.append(affixes[1])
        return b"".join(ids)

    def _within(self, piece_bytes: int, limit_s: float) -> None:
        if self._speed.encode_s(piece_bytes) > limit_s:
            raise Unrenderable("uncut")


def finish(steps: Steps, started_s: float) -> Tokenized:
    """Runs what is left of a job's steps; started_s: time.perf_counter() at its first."""
    prompt, error = None, None
    try:
        while True:
            next(steps)
    except StopIteration as end:
        prompt = end.value
    except (RequestError, Unrenderable) as problem:
        error = problem
    return Tokenized(prompt, error, time.perf_counter() - started_s)

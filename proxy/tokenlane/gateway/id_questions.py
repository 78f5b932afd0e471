"""Questions to a replica that compare its ids with the gateway's own.

Invariants:
- Work that grows with a prompt runs in threads.
- A replica without an answer is not a difference (`CannotSayError`), nor is a prompt that it or the
  gateway refuses.
- How a run of ids reads as text is a matter of decoding alone: only texts whose ids differ too are
  a difference.
"""

import asyncio
import time
from functools import partial
from random import Random
from typing import Any

import msgspec

from tokenlane.errors import UNREADABLE, RequestError, Unrenderable, UpstreamError
from tokenlane.fleet_state import IdKind
from tokenlane.gateway import tokenize_requests
from tokenlane.gateway.fleet import Replica
from tokenlane.http.fetch import fetch
from tokenlane.protocols.bodies import CompletionBody, Kind, Prompted
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens import proof_corpus
from tokenlane.tokens.encoder_threads import EncoderExecutor
from tokenlane.tokens.ids import pack
from tokenlane.tokens.tokenizer import Tokenizer

# Whitespace that some tokenizers clean up when they turn ids into text.
_TIDIED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


class CannotSayError(Exception):
    """Why a replica tells nothing of ids."""


class _Text(msgspec.Struct):
    prompt: str


_encoder = EncoderExecutor(1, "proofs")
_decode_text = msgspec.json.Decoder(_Text).decode
_encode = msgspec.json.Encoder().encode


class IdQuestions:
    """Questions to one replica about one model. deadline_s: for each answer."""

    def __init__(
        self, replica: Replica, model: str, tokenizer: Tokenizer, deadline_s: float
    ) -> None:
        self._replica = replica
        self._model = model
        self._tokenizer = tokenizer
        self._deadline_s = deadline_s

    async def same(self, request: Prompted, ids: bytes | None = None) -> bool | None:
        """Return whether the replica makes these ids of a request, None where that cannot be known.
        ids: ours, made now unless given. Raise CannotSayError."""
        if self._tokenizer.harmony and type(request) is not CompletionBody:
            return None
        # A template may print the time, so ids made a moment ago may be stale.
        tries = 2 if self._tokenizer.volatile and type(request) is not CompletionBody else 1
        try:
            for _ in range(tries):
                if ids is None or tries > 1:
                    ids = await _encoder.run(partial(_ids, self._tokenizer, request))
                body = await asyncio.to_thread(
                    tokenize_requests.question, self._model, request, self._tokenizer
                )
                told = await self._answer("/tokenize", body)
                if told is None:
                    return None
                if await asyncio.to_thread(tokenize_requests.answer, told) == ids:
                    return True
        except (Unrenderable, RequestError):
            return None
        return False

    async def agrees(self, kind: IdKind, draw: Random) -> Prompted | int:
        """Ask everything that proves a kind, of completions the whole vocabulary, too. Return the
        request whose ids differ, or how many are the same. Raise CannotSayError."""
        drawn = proof_corpus.requests(self._tokenizer, kind, draw)
        count = 0
        while (fields := await asyncio.to_thread(next, drawn, None)) is not None:
            request = _request(fields)
            same = await self.same(request)
            if same is False:
                return request
            count += same is True
        if kind is IdKind.COMPLETION and count:
            return await self._vocabulary(draw) or count
        return count

    async def drawn(self, kind: IdKind, draw: Random) -> Prompted:
        """Return one of the requests that prove a kind."""
        found = proof_corpus.requests(self._tokenizer, kind, draw)
        return _request(draw.choice(await asyncio.to_thread(list, found)))

    async def _vocabulary(self, draw: Random) -> Prompted | None:
        """Ask for the text of every id, for at most half of the time. Return a request whose ids
        differ. Raise CannotSayError."""
        runs = proof_corpus.runs(self._tokenizer.encoder, draw)
        while (run := await asyncio.to_thread(next, runs, None)) is not None:
            began_s = time.monotonic()
            body = {"model": self._model, "tokens": run}
            told = await self._answer("/detokenize", _encode(body))
            if told is not None:
                theirs = _text(told)
                ours = await asyncio.to_thread(self._tokenizer.decode, pack(run))
                if theirs not in (ours, _tidied(ours)):
                    request = _request({"prompt": f"{theirs}\n{ours}"})
                    if await self.same(request) is False:
                        return request
            await asyncio.sleep(time.monotonic() - began_s)
        return None

    async def _answer(self, path: str, body: bytes) -> bytes | None:
        """Return the answer's body; None where the replica refuses this very prompt."""
        try:
            status, told = await fetch(self._replica.pool, path, body, self._deadline_s)
        except TimeoutError:
            raise CannotSayError(f"{path}: no answer in time") from None
        except RequestError:
            raise CannotSayError(f"{path}: no connection can be opened") from None
        except UpstreamError as error:
            raise CannotSayError(f"{path}: {error.reason}") from None
        if status in tokenize_requests.OF_THE_PROMPT:
            return None
        if status != 200:
            raise CannotSayError(f"{path}: status {status}")
        return told


def _text(told: bytes) -> str:
    try:
        return _decode_text(told).prompt
    except UNREADABLE:
        raise CannotSayError("/detokenize: no answer that can be read") from None


def _request(fields: dict[str, Any]) -> Prompted:
    kind = Kind.COMPLETION if "prompt" in fields else Kind.CHAT
    request = inspect(kind, _encode(fields))
    assert isinstance(request, Prompted)
    return request


def _ids(tokenizer: Tokenizer, request: Prompted) -> bytes:
    if type(request) is CompletionBody:
        return tokenizer.completion_ids(request)[0]
    return tokenizer.chat_ids(request)


def _tidied(text: str) -> str:
    for mark in _TIDIED:
        text = text.replace(mark, "'" if mark == " ' " else mark[1:])
    return text

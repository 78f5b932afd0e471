"""Ids from a replica's `/tokenize`, where a model has no tokenizer here, or vLLM renders it with
code of its own.

Invariants:
- Open questions are bounded in number and time; any failure is a reason (Unrenderable), and the
  request is routed by its text.
- A replica that cannot answer is not asked for a while, so that prompts do not wait for it again.
- A replica whose answers count other tokens than the ids say (see `tokenlane.gateway.id_trust`) is
  asked no more about such requests.
- Work that grows with the prompt runs off the loop, except for short prompts.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tokenlane.config.settings import TokenSettings
from tokenlane.errors import RequestError, Unrenderable, UpstreamError
from tokenlane.gateway import tokenize_requests
from tokenlane.gateway.fleet import Fleet, Replica
from tokenlane.gateway.id_trust import Claim
from tokenlane.http.fetch import fetch
from tokenlane.prompt import Prompt
from tokenlane.protocols.bodies import CompletionBody, Prompted
from tokenlane.protocols.inspection import is_ids, kinds_of
from tokenlane.routing.router import Router
from tokenlane.tokens.blocks import block_hashes
from tokenlane.tokens.keys import prompt_size_bytes, salt
from tokenlane.tokens.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_REST_S = 10.0
# A hop to a thread costs more than this much JSON.
_INLINE_LIMIT_BYTES = 8 * 1024
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


async def _beside(
    size_bytes: int, work: Callable[_Given, _Made], *given: _Given.args, **named: _Given.kwargs
) -> _Made:
    if size_bytes <= _INLINE_LIMIT_BYTES:
        return work(*given, **named)
    return await asyncio.to_thread(work, *given, **named)


class ReplicaTokenizer:
    """A worker's questions to replicas. claim: of a model's ids and their kinds."""

    def __init__(
        self,
        fleet: Fleet,
        router: Router,
        settings: TokenSettings,
        claim: Callable[[str, int], Claim],
    ) -> None:
        self._fleet = fleet
        self._router = router
        self._deadline_s = settings.ask_deadline_s
        self._claim = claim
        self._permits = asyncio.Semaphore(settings.ask_limit_count)
        self._turn = 0
        # By slot: the replica's incarnation, and until when it rests.
        self._resting: dict[int, tuple[int, float]] = {}

    async def prompt(
        self, model: str, request: Prompted, tokenizer: Tokenizer | None, block_tokens: int
    ) -> Prompt:
        """Return the ids of a request. tokenizer: the model's, where there is one. Raise
        Unrenderable."""
        size_bytes = prompt_size_bytes(request)
        if type(request) is CompletionBody and is_ids(request):
            ids = await _beside(size_bytes, tokenize_requests.given_ids, request)
        else:
            body = await _beside(size_bytes, tokenize_requests.question, model, request, tokenizer)
            ids = await self._asked(model, body, self._claim(model, kinds_of(request)).refuted)
        blocks = await _beside(len(ids), block_hashes, ids, block_tokens, salt(model, request))
        return Prompt((ids,), blocks, block_tokens, len(ids) // 4)

    async def _asked(self, model: str, body: bytes, refuted: frozenset[int]) -> bytes:
        replica = self._replica(model, refuted)
        if self._permits.locked():
            raise Unrenderable("replica-full")
        async with self._permits:
            try:
                status, told = await fetch(replica.pool, "/tokenize", body, self._deadline_s)
            except TimeoutError:
                raise self._rest(replica, "replica-late", "no answer in time") from None
            except RequestError:  # no connection can be opened
                raise Unrenderable("replica-full") from None
            except UpstreamError as error:
                raise self._rest(replica, "replica-failed", error.reason) from None
        if status in tokenize_requests.OF_THE_PROMPT:
            raise Unrenderable("replica-refused")
        if status != 200:
            raise self._rest(replica, "replica-refused", f"status {status}")
        try:
            return await _beside(len(told), tokenize_requests.answer, told)
        except Unrenderable as error:
            raise self._rest(replica, error.reason, "no answer that can be read") from None

    def _replica(self, model: str, refuted: frozenset[int]) -> Replica:
        """Return the next replica to ask."""
        now_s = time.monotonic()
        able = []
        slots = self._router.eligible(model or None, now_s).slots
        if slots and refuted.issuperset(slots):
            raise Unrenderable("other-count")
        for slot in slots:
            if slot in refuted:
                continue
            replica = self._fleet[slot]
            incarnation, until_s = self._resting.get(slot, (-1, 0.0))
            if incarnation != replica.state.incarnation or until_s <= now_s:
                able.append(replica)
        if not able:
            raise Unrenderable("no-tokenizer")
        self._turn += 1
        return able[self._turn % len(able)]

    def _rest(self, replica: Replica, reason: str, why: str) -> Unrenderable:
        slot, incarnation = replica.state.slot, replica.state.incarnation
        if self._resting.get(slot, (-1, 0.0))[0] != incarnation:
            log.warning("replica %s does not answer /tokenize: %s", replica.state.id, why)
        self._resting[slot] = incarnation, time.monotonic() + _REST_S
        return Unrenderable(reason)

"""What of a prompt is known before its request is routed, and what follows from it.

Invariants:
- Where nothing consumes ids, none are made. Not having them is no error: it is a reason.
- What no replica has room for is refused before one computes anything.
"""

import time
from random import random

from tokenlane.config.settings import Settings, TokenSettings
from tokenlane.gateway import body_rewriter
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.id_trust import Claim
from tokenlane.gateway.prover import Prover
from tokenlane.gateway.query_builder import QueryBuilder
from tokenlane.gateway.request_record import RequestRecord
from tokenlane.http.exchange import Exchange
from tokenlane.protocols import context_window
from tokenlane.protocols.bodies import Body, ChatBody, CompletionBody, OtherBody, is_ids, kinds_of
from tokenlane.routing.decision import Query
from tokenlane.routing.router import Router
from tokenlane.runtime.cohorts import step_aside
from tokenlane.telemetry.stalls.stages import LOOP, OTHER, ROUTE, TOKENIZE_LOCAL
from tokenlane.tokens.service import TokenService


class PromptReader:
    """A worker's prompts. prover: which replicas make the same ids."""

    def __init__(
        self,
        settings: Settings,
        tokens: TokenService,
        fleet: Fleet,
        router: Router,
        query_builder: QueryBuilder,
        prover: Prover,
    ) -> None:
        self._tokens = tokens
        self._fleet = fleet
        self._router = router
        self._query_builder = query_builder
        self._trust = prover.trust
        self._claims = prover.trust.claims
        self._prover = prover
        # By slot, the part of a check that answers have saved up.
        self._saved: dict[int, float] = {}
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """From the next request on; the router has its settings already."""
        tokens = settings.tokens
        self._settings: TokenSettings = tokens
        self._wants_ids = (
            self._router.uses_prefix or tokens.context_check or tokens.forward_tokens != "off"
        )

    async def read(
        self,
        exchange: Exchange,
        model: str | None,
        request: Body,
        body: bytes,
        record: RequestRecord,
    ) -> tuple[Query, bytes]:
        """What routing asks with, and the body that replicas get (`body_for`). Raises RequestError
        for a prompt that no replica has room for."""
        query_builder, block_tokens = self._query_builder, self._tokens.block_tokens
        if isinstance(request, OtherBody) or not self._wants_ids:
            LOOP.mark(ROUTE)
            return query_builder.unread(request, block_tokens, exchange.headers), body
        limit_tokens = context_window.NO_LIMIT
        kinds = kinds_of(request)
        claim = self._claims.get((model or "", kinds)) or self._trust.claim(model or "", kinds)
        if self._settings.context_check and claim.everywhere:
            limit_tokens = self._fleet.context_tokens.get(model or "", context_window.NO_LIMIT)
        # Ids, off the loop where they take long.
        LOOP.mark(TOKENIZE_LOCAL)
        known = self._tokens.known(model or "", request)
        if isinstance(known, bytes):
            known = await self._tokens.make(
                model or "", request, known, limit_tokens=limit_tokens, tenant=record.tenant
            )
            LOOP.mark(OTHER)
            await step_aside()
        else:
            known.run_s = time.monotonic() - record.inspected_s
        LOOP.mark(ROUTE)
        record.tokens = known
        prompt = known.prompt
        if prompt is not None:
            if prompt.tokens > limit_tokens:
                context_window.check(prompt, limit_tokens, text=not is_ids(request))
            if claim.kinds:
                record.claim, record.asked = claim, request
                if isinstance(request, ChatBody | CompletionBody) and self._forwards(
                    claim, request
                ):
                    record.with_ids = await body_rewriter.with_ids(body, request, prompt)
        headers, tenant = exchange.headers, record.tenant
        return (
            query_builder.query(
                model,
                request,
                prompt,
                known.reason,
                block_tokens,
                headers,
                tenant,
                claim.silent,
            ),
            body,
        )

    def _forwards(self, claim: Claim, request: ChatBody | CompletionBody) -> bool:
        """Whether replicas get this request's ids instead of its text. Some of what could be
        goes as text, so that the answer's usage is the replica's own count."""
        mode = self._settings.forward_tokens
        if mode == "off" or not claim.proven or self._tokens.asks(claim.model, request):
            return False
        # A replica's template may ask for the date: what it made of a chat may be old by now.
        if isinstance(request, ChatBody) and mode != "all":
            return False
        return random() >= self._settings.as_text_ratio

    def body_for(self, slot: int, body: bytes, record: RequestRecord) -> bytes:
        """The body that this replica gets: with ids, where it has proven that it makes the same."""
        claim, with_ids = record.claim, record.with_ids
        if with_ids is None or claim is None or slot not in claim.proven:
            return body
        return with_ids

    def compare(self, record: RequestRecord) -> None:
        """What the replica counted is held against what we did; of some prompts, id by id."""
        claim, asked, decision = record.claim, record.asked, record.decision
        if claim is None or asked is None or decision is None:
            return
        slot = decision.choice.slot
        if slot in claim.silent or slot not in self._fleet:
            return
        assert record.tokens is not None
        prompt = record.tokens.prompt
        assert prompt is not None
        usage = record.relay.usage if record.relay is not None else None
        # Of forwarded ids it is mostly their own number, which tells nothing.
        if usage is not None and usage.prompt_tokens != prompt.tokens:
            self._trust.mismatch(slot, claim)
            self._prover.check(slot, claim, asked, prompt.sequences[0])
            return
        # Saved up, so that no run of luck asks for more.
        saved = self._saved.get(slot, 0.0) + self._settings.check_ratio
        if saved >= 1.0 and self._prover.check(slot, claim, asked, prompt.sequences[0]):
            saved = 0.0
        self._saved[slot] = saved

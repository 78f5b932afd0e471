"""What of a prompt is known before its request is routed, and what follows from it.

Invariants:
- Where nothing consumes ids, none are made. Not having them is no error: it is a reason.
- What no replica has room for is refused before one computes anything.
"""

import time

from tokenlane.config.settings import Settings, TokenSettings
from tokenlane.gateway import body_rewriter
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.parity import Parity
from tokenlane.gateway.query_builder import QueryBuilder
from tokenlane.gateway.request_record import RequestRecord
from tokenlane.http.exchange import Exchange
from tokenlane.protocols import context_window
from tokenlane.protocols.bodies import Body, ChatBody, CompletionBody, OtherBody, is_ids
from tokenlane.routing.decision import Query
from tokenlane.routing.router import Router
from tokenlane.runtime.cohorts import step_aside
from tokenlane.telemetry.stalls.stages import LOOP, OTHER, ROUTE, TOKENIZE_LOCAL
from tokenlane.tokens.service import TokenService


class PromptReader:
    """A worker's prompts. parity: whether a model's ids are trusted."""

    def __init__(
        self,
        settings: Settings,
        tokens: TokenService,
        fleet: Fleet,
        router: Router,
        query_builder: QueryBuilder,
        parity: Parity,
    ) -> None:
        self._tokens = tokens
        self._fleet = fleet
        self._router = router
        self._query_builder = query_builder
        self._parity = parity
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
        """What routing asks with, and the body that replicas get. Raises RequestError for a prompt
        that no replica has room for."""
        query_builder, block_tokens = self._query_builder, self._tokens.block_tokens
        if isinstance(request, OtherBody) or not self._wants_ids:
            LOOP.mark(ROUTE)
            return query_builder.unread(request, block_tokens, exchange.headers), body
        limit_tokens = context_window.NO_LIMIT
        if self._settings.context_check:
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
            if isinstance(request, ChatBody | CompletionBody) and self._forwards(model, request):
                body = await body_rewriter.with_ids(body, request, prompt)
        headers, tenant = exchange.headers, record.tenant
        return (
            query_builder.query(
                model, request, prompt, known.reason, block_tokens, headers, tenant
            ),
            body,
        )

    def _forwards(self, model: str | None, request: ChatBody | CompletionBody) -> bool:
        """Whether replicas get this request's ids in the place of its text."""
        mode = self._settings.forward_tokens
        # A replica's template may ask for the date: what it made of a chat may be old by now.
        if isinstance(request, ChatBody) and (
            mode != "all" or self._tokens.asks(model or "", request)
        ):
            return False
        return mode != "off" and self._parity.trusts(model or "")

    def compare(self, model: str | None, record: RequestRecord) -> None:
        """What the replica counted is held against what we did."""
        usage = record.relay.usage if record.relay is not None else None
        prompt = record.tokens.prompt if record.tokens is not None else None
        if usage is None or prompt is None or usage.prompt_tokens == prompt.tokens:
            return
        slot = record.decision.choice.slot if record.decision is not None else -1
        if slot in self._fleet:
            self._parity.differs(model or "", self._fleet[slot].state.id)

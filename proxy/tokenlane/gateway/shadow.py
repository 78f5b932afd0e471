"""Shadow traffic: copies of requests to another model's replicas, whose answers nobody reads.

Invariants:
- The client's request waits for nothing of this and is touched by none of it: a copy is a task of
  its own that begins once the request is on its way, and its failures end here, in a metric.
- Copies under way are bounded in number and in bytes of their bodies; beyond that none are made.
- A copy is sent once: no retry, no second replica, no doubt cast on a replica that fails it.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from tokenlane.config.settings import ModelSettings
from tokenlane.errors import RequestError, UpstreamError
from tokenlane.gateway import body_rewriter
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.query_builder import QueryBuilder
from tokenlane.http.exchange import Exchange
from tokenlane.http.fetch import AwaitableSink
from tokenlane.http.headers import request_head
from tokenlane.http.heads import RequestHead, ResponseHead
from tokenlane.protocols.bodies import Body, OtherBody
from tokenlane.routing.decision import Query
from tokenlane.routing.lease import Lease
from tokenlane.routing.router import Router
from tokenlane.tokens.service import TokenService

log = logging.getLogger(__name__)

MARK = b"x-tokenlane-shadow: 1\r\n"


class _Copy:
    """A request to be sent again. to: the model."""

    __slots__ = ("body", "head", "request", "request_id", "tenant", "to")

    def __init__(
        self, exchange: Exchange, request: Body, body: bytes, to: str, tenant: str
    ) -> None:
        self.head: RequestHead = exchange.head
        self.request_id = exchange.request_id
        self.request = request
        self.body = body
        self.to = to
        self.tenant = tenant


class _Unread(AwaitableSink):
    """Forgets what it hears but the status, and when it began."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self._lease = lease
        self._computed = False

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Head and body at once."""
        self.status = head.status
        self._began()
        self.on_end()

    def on_body(self, framed: bytes, payload: list[bytes]) -> None:
        """More of the body."""
        if not self._computed:
            self._began()

    def _began(self) -> None:
        self._computed = True
        self._lease.first_byte(time.monotonic())


class ShadowTraffic:
    """A worker's copies. tell: gets (model, outcome, seconds) of each, outcomes as in
    families.SHADOWS. reads: prompts are made ids of, for the policy. size_bytes: of the bodies
    under way."""

    def __init__(
        self,
        settings: ModelSettings,
        fleet: Fleet,
        router: Router,
        tokens: TokenService,
        query_builder: QueryBuilder,
        tell: Callable[[str, str, float], None],
    ) -> None:
        self._limit_count = settings.shadow_limit_count
        self.limit_bytes = settings.shadow_limit_bytes
        self._fleet = fleet
        self._router = router
        self._tokens = tokens
        self._query_builder = query_builder
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()
        self.size_bytes = 0

    def __repr__(self) -> str:
        return f"<Shadows {len(self._tasks)} under way, {self.size_bytes} bytes>"

    def offer(self, exchange: Exchange, request: Body, body: bytes, to: str, tenant: str) -> None:
        """Makes a copy for the model `to`, if there is room; returns at once. body: as the client
        sent it, its tenant's salt included."""
        if (
            len(self._tasks) >= self._limit_count
            or self.size_bytes + len(body) > self.limit_bytes
            or to not in self._fleet.ready
        ):
            self._tell(to, "nobody" if to not in self._fleet.ready else "full", 0.0)
            return
        self.size_bytes += len(body)
        task = asyncio.get_running_loop().create_task(
            self._run(_Copy(exchange, request, body, to, tenant)), name="shadow"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Ends what is under way."""
        for task in self._tasks:
            task.cancel()

    async def _run(self, copy: _Copy) -> None:
        began_s = time.monotonic()
        outcome = "failed"
        try:
            outcome = await self._send(copy)
        except asyncio.CancelledError:
            outcome = "stopped"
            raise
        except (RequestError, UpstreamError):
            pass
        except Exception:
            log.exception("a shadow request failed for no foreseen reason")
        finally:
            self.size_bytes -= len(copy.body)
            self._tell(copy.to, outcome, time.monotonic() - began_s)

    async def _send(self, copy: _Copy) -> str:
        """One request to one replica; what became of it. Raises RequestError, UpstreamError."""
        body = await body_rewriter.with_model(copy.body, copy.to)
        query = await self._query(copy)
        now_s = time.monotonic()
        among = self._router.eligible(copy.to, now_s)
        if among.nobody is not None:
            return "nobody"
        choice = self._router.decide(query, among, now_s).choice
        pool = self._fleet[choice.slot].pool
        head = request_head(
            copy.head.method,
            copy.head.target,
            pool.lines,
            copy.head.forwarded + MARK,
            copy.request_id + b"-shadow",
            len(body),
        )
        with self._router.attempt(choice, query, now_s) as lease:
            connection = pool.idle() or await pool.connect()
            answer = _Unread(lease)
            try:
                connection.send(copy.head.method, [head, body], answer)
                await answer.done
            finally:
                connection.abort(answer)  # does nothing where the answer has ended
        return "ok" if answer.status < 400 else "refused"

    async def _query(self, copy: _Copy) -> Query:
        block_tokens, headers = self._tokens.block_tokens, copy.head.headers
        request = copy.request
        if isinstance(request, OtherBody) or not self._router.uses_prefix:
            return self._query_builder.unread(request, block_tokens, headers)
        known = await self._tokens.prompt(copy.to, request)
        return self._query_builder.query(
            copy.to, request, known.prompt, known.reason, block_tokens, headers, copy.tenant
        )

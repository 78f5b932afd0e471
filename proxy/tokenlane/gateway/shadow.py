"""Shadow traffic: copies of requests to another model's replicas, whose answers are dropped.

Invariants:
- The client's request never waits for its copy: that is a separate task, which starts once the
  request has been sent, and whose failures only count in a metric.
- Copies in flight are bounded in number and in bytes of their bodies; beyond that none are made.
- A copy is sent once: no retry, no second replica, and a failure does not count against its
  replica.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from tokenlane.config.settings import ModelSettings
from tokenlane.errors import RequestError, UpstreamError
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.plan import Plan
from tokenlane.gateway.planner import Planner
from tokenlane.http.fetch import AwaitableSink
from tokenlane.http.headers import request_head
from tokenlane.http.heads import RequestHead, ResponseHead
from tokenlane.parts import pieces
from tokenlane.routing.lease import Lease
from tokenlane.routing.router import Router
from tokenlane.telemetry.stalls.stages import DURING, ROUTE

log = logging.getLogger(__name__)

MARK = b"x-tokenlane-shadow: 1\r\n"


class _Unread(AwaitableSink):
    """Drops the answer, except its status and when it began."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self._lease = lease
        self._streams = self._computed = False

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Take head and body at once."""
        self.status = head.status
        self.on_end()

    def on_head(self, head: ResponseHead, length_bytes: int | None) -> None:
        """Take the head."""
        self.status = head.status
        self._streams = head.stream and head.status == 200

    def on_body(self, framed: bytes, payload: list[bytes]) -> None:
        """Take more of the body."""
        if not self._computed:
            self._computed = True
            self._lease.first_byte(time.monotonic() if self._streams else 0.0)


class ShadowTraffic:
    """A worker's copies. tell: gets (model, outcome, seconds) of each, outcomes as in
    families.SHADOWS. size_bytes: of the bodies under way."""

    def __init__(
        self,
        settings: ModelSettings,
        fleet: Fleet,
        router: Router,
        planner: Planner,
        tell: Callable[[str, str, float], None],
    ) -> None:
        self._fleet = fleet
        self._router = router
        self._planner = planner
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()
        self.size_bytes = 0
        self.configure(settings)

    def configure(self, settings: ModelSettings) -> None:
        """Replace the limits for new copies."""
        self._limit_count = settings.shadow_limit_count
        self.limit_bytes = settings.shadow_limit_bytes

    def __repr__(self) -> str:
        return f"<Shadows {len(self._tasks)} under way, {self.size_bytes} bytes>"

    def offer(self, head: RequestHead, plan: Plan) -> None:
        """Make the copy that a request's plan asks for, if there is room; return at once."""
        to = plan.shadow
        if to is None:
            return
        size_bytes = len(plan.body.raw)
        if (
            len(self._tasks) >= self._limit_count
            or self.size_bytes + size_bytes > self.limit_bytes
            or to not in self._fleet.ready
        ):
            self._tell(to, "nobody" if to not in self._fleet.ready else "full", 0.0)
            return
        self.size_bytes += size_bytes
        task = asyncio.get_running_loop().create_task(
            self._run(head, plan.copy_for(to), to), name="shadow"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel the copies in flight."""
        for task in self._tasks:
            task.cancel()

    async def _run(self, head: RequestHead, plan: Plan, to: str) -> None:
        began_s = time.monotonic()
        outcome = "failed"
        try:
            outcome = await self._send(head, plan)
        except asyncio.CancelledError:
            outcome = "stopped"
            raise
        except (RequestError, UpstreamError):
            pass
        except Exception:
            log.exception("a shadow request failed unexpectedly")
        finally:
            self.size_bytes -= len(plan.body.raw)
            self._tell(to, outcome, time.monotonic() - began_s)

    async def _send(self, head: RequestHead, plan: Plan) -> str:
        """Send one request to one replica and return the outcome. Raise RequestError,
        UpstreamError."""
        with DURING[ROUTE]:
            await self._planner.read(plan)
            # Before a replica is chosen, which may be removed while a thread makes the body.
            body = await plan.body.text()
            now_s = time.monotonic()
            among = self._router.eligible(plan.model, now_s)
            if among.nobody is not None:
                return "nobody"
            decision = self._planner.decide(plan, among, now_s)
        pool = self._fleet[decision.choice.slot].pool
        sent = request_head(
            head.method,
            head.target,
            pool.lines,
            head.forwarded + MARK,
            plan.request_id + b"-shadow",
            len(body),
        )
        with self._router.attempt(decision.choice, plan.query, now_s) as lease:
            connection = pool.idle() or await pool.connect()
            answer = _Unread(lease)
            try:
                connection.send(head.method, [sent, *pieces(body)], answer)
                await answer.done
            finally:
                connection.abort(answer)  # does nothing if the answer has ended
        return "ok" if answer.status < 400 else "refused"

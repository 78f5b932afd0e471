"""Admission on the loop: a request enters, waits for its turn or is refused, and leaves.

Invariants:
- A permit is a context manager: whatever ends a request gives its permit back and wakes the next.
- No body is looked at here. What a prompt will cost is guessed from its size in bytes.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from tokenlane.admission.policy import CLASSES, Admission, Refusal, State, Ticket
from tokenlane.config.settings import AdmissionSettings, Tenant
from tokenlane.errors import RequestError
from tokenlane.telemetry.stalls.stages import AWAITING, INSPECT
from tokenlane.tokens.blocks import TEXT_BYTES_PER_TOKEN

OnShed = Callable[[str, str], object]
OnAdmitted = Callable[[str, float], object]


class AdmissionQueue:
    """A worker's queue. deadline_s: no request waits longer. on_shed: told the tenant and the
    reason of a refusal. on_admitted: told the priority class and the seconds waited."""

    def __init__(
        self, admission: Admission, deadline_s: float, on_shed: OnShed, on_admitted: OnAdmitted
    ) -> None:
        self.admission = admission
        self.deadline_s = deadline_s
        self.on_shed = on_shed
        self.on_admitted = on_admitted
        self.waiting: dict[Ticket, asyncio.Future[None]] = {}

    def configure(
        self, settings: AdmissionSettings, tenants: Mapping[str, Tenant], workers: int
    ) -> None:
        """Replace the settings, for waiting requests too. Permits already given stay."""
        self.deadline_s = settings.queue_deadline_s
        self.wake(self.admission.configure(settings, tenants, workers))

    @asynccontextmanager
    async def permit(
        self, tenant: str, size_bytes: int, parent: int = 0
    ) -> AsyncIterator["Permit"]:
        """Wait for the permit of a request with a body of this size, and hold it. parent: as for
        `Admission.ask`.

        Raise RequestError 429 (the tenant's own limits) or 503 where there is none in time.
        """
        now_s = time.monotonic()
        tokens = size_bytes // TEXT_BYTES_PER_TOKEN
        ticket, displaced = self.admission.ask(tenant, tokens, now_s, parent)
        if displaced is not None:
            self.wake([displaced])
        if ticket.state is State.GONE:
            raise self.refuse(ticket, Refusal.FULL)
        try:
            if ticket.state is State.WAITING:
                with AWAITING[INSPECT]:
                    await self._wait(ticket)
            self.on_admitted(CLASSES[ticket.line.rank], time.monotonic() - now_s)
            yield Permit(self, ticket)
        finally:
            self.wake(self.admission.leave(ticket, time.monotonic()))

    async def _wait(self, ticket: Ticket) -> None:
        self.waiting[ticket] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self.deadline_s):
                await self.waiting[ticket]
        except TimeoutError:
            self.wake(self.admission.leave(ticket, time.monotonic()))
            raise self.refuse(ticket, Refusal.LATE) from None
        finally:
            del self.waiting[ticket]
        if ticket.state is State.GONE:
            raise self.refuse(ticket, Refusal.DISPLACED)

    def wake(self, tickets: list[Ticket]) -> None:
        """Wake the requests of these tickets: they have a permit, or must not wait any longer."""
        for ticket in tickets:
            future = self.waiting.get(ticket)
            if future is not None and not future.done():
                future.set_result(None)

    def refuse(self, ticket: Ticket, why: Refusal) -> Exception:
        """Count a refusal and return the answer to it."""
        self.on_shed(ticket.account.name, why.value)
        after_s = self.admission.retry_after_s()
        return overloaded(after_s, own=self.admission.over(ticket))


class Permit(NamedTuple):
    """A permit that is held: `async with queue.permit(tenant, size_bytes) as permit`."""

    queue: AdmissionQueue
    ticket: Ticket

    def computed(self) -> None:
        """Tell that the replica has computed the prompt: its tokens no longer count as waiting."""
        self.queue.wake(self.queue.admission.computed(self.ticket))


def overloaded(retry_after_s: int, *, own: bool) -> RequestError:
    """Return the answer to a request that got no permit in time: 429 where its own tenant has all
    it may have (own), else 503."""
    if own:
        return RequestError(
            429,
            "Too many requests of this key's tenant at once.",
            kind="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after_s=retry_after_s,
        )
    return RequestError(
        503,
        "The gateway has as many requests as it can serve.",
        kind="server_error",
        code="overloaded",
        retry_after_s=retry_after_s,
    )

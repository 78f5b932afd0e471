"""Admission on the loop: a request enters, waits for its turn or is refused, and leaves.

Invariants:
- A place is a context: whatever ends a request gives its place back, and wakes who is next.
- Nothing of a body is looked at here. What a prompt will cost is guessed by its size in bytes.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from tokenlane.admission.policy import CLASSES, Admission, State, Ticket, Why
from tokenlane.config.settings import AdmissionSettings, Tenant
from tokenlane.gateway import refusals
from tokenlane.tokens.blocks import TEXT_BYTES_PER_TOKEN

# Tenant and reason; class and seconds waited.
OnShed = Callable[[str, str], object]
OnAdmitted = Callable[[str, float], object]


class Gate:
    """A worker's. deadline_s: nobody waits longer."""

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
        """From now on, for those that wait too; who has a place keeps it."""
        self.deadline_s = settings.queue_deadline_s
        self.wake(self.admission.configure(settings, tenants, workers))

    def place(self, tenant: str, size_bytes: int, parent: int = 0) -> "Place":
        """For a request whose body has so many bytes. parent: as for `Admission.ask`."""
        return Place(self, tenant, size_bytes // TEXT_BYTES_PER_TOKEN, parent)

    def wake(self, tickets: list[Ticket]) -> None:
        """What these wait for has come: a place, or the end of waiting."""
        for ticket in tickets:
            future = self.waiting.get(ticket)
            if future is not None and not future.done():
                future.set_result(None)

    def refuse(self, ticket: Ticket, why: Why) -> Exception:
        """Counts a refusal; the answer."""
        self.on_shed(ticket.account.name, why.value)
        after_s = self.admission.retry_after_s()
        return refusals.overloaded(after_s, own=self.admission.over(ticket))


class Place:
    """`async with gate.place(tenant, size_bytes) as place: ... place.computed() ...`

    Raises RequestError 429 (the tenant's own limits) or 503 where there is none in time.
    """

    __slots__ = ("_gate", "_parent", "_tenant", "_ticket", "_tokens")

    def __init__(self, gate: Gate, tenant: str, tokens: int, parent: int) -> None:
        self._gate = gate
        self._tenant = tenant
        self._tokens = tokens
        self._parent = parent
        self._ticket: Ticket | None = None

    async def __aenter__(self) -> Self:
        gate = self._gate
        now_s = time.monotonic()
        ticket, displaced = gate.admission.ask(self._tenant, self._tokens, now_s, self._parent)
        self._ticket = ticket
        if displaced is not None:
            gate.wake([displaced])
        if ticket.state is State.GONE:
            raise gate.refuse(ticket, Why.FULL)
        if ticket.state is State.WAITING:
            await self._wait(gate, ticket)
        gate.on_admitted(CLASSES[ticket.line.rank], time.monotonic() - now_s)
        return self

    async def _wait(self, gate: Gate, ticket: Ticket) -> None:
        gate.waiting[ticket] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(gate.deadline_s):
                await gate.waiting[ticket]
        except TimeoutError:
            gate.wake(gate.admission.leave(ticket, time.monotonic()))
            raise gate.refuse(ticket, Why.LATE) from None
        except BaseException:
            gate.wake(gate.admission.leave(ticket, time.monotonic()))
            raise
        finally:
            del gate.waiting[ticket]
        if ticket.state is State.GONE:
            raise gate.refuse(ticket, Why.DISPLACED)

    def computed(self) -> None:
        """The replica has computed the prompt: its tokens wait no longer."""
        if self._ticket is not None:
            self._gate.wake(self._gate.admission.computed(self._ticket))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ticket is not None:
            self._gate.wake(self._gate.admission.leave(self._ticket, time.monotonic()))

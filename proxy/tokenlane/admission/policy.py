"""Who is served now, who waits and who is turned away. Pure: the time is an argument.

Invariants:
- Work is bounded before it is read: requests in hand and the prompt tokens that replicas have still
  to compute, of all together and of each tenant. A request larger than a whole budget runs alone.
- The better class goes first. Within a class tenants take turns, whatever they have waiting.
- What is longer than `long_prompt_tokens` waits in the worst class, whoever asks.
- A tenant's own requests of one class keep their order, but that one whose parent waits for
  several counts as having come with the first of them, at most `sibling_lead_s` before it did. So
  what a parent waits for ends before what came between, and nobody is overtaken by what comes
  later than that.
- A full queue turns away who has most waiting in the worst class: a tenant that floods displaces
  its own requests, not those of others.
- Every ticket leaves once (`leave`), admitted or not; what it held is then free.
- Workers have even parts of all limits. Where gateways share the places of tenants, those come as
  portions instead, as many as are told (`portion`), none at first.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Mapping
from enum import Enum

from tokenlane.admission.places import Place
from tokenlane.admission.tenant_account import TenantAccount, fits, per_worker
from tokenlane.config.settings import AdmissionSettings, Tenant

CLASSES = ("interactive", "standard", "batch")
_RETRY_LIMIT_S = 60
# How far the newest gap between two departures moves the estimate.
_GAP_WEIGHT = 0.05


class State(Enum):
    """Where a ticket stands."""

    WAITING = "waiting"
    ADMITTED = "admitted"
    GONE = "gone"


class Refusal(Enum):
    """Why a request was turned away (metric label)."""

    FULL = "queue-full"
    DISPLACED = "displaced"
    LATE = "deadline"


class ClassQueue:
    """What of one tenant waits in one class. queue: the next first."""

    __slots__ = ("account", "queue", "rank")

    def __init__(self, account: TenantAccount, rank: int) -> None:
        self.account = account
        self.rank = rank
        self.queue: list[Ticket] = []


class Ticket:
    """One request's claim. tokens: of its prompt, estimated; 0 once they are computed. order_s:
    what it came at, as far as its line's order goes. parent: who waits for it, or 0."""

    __slots__ = ("account", "line", "order_s", "parent", "state", "tokens")

    def __init__(self, line: ClassQueue, tokens: int, order_s: float, parent: int) -> None:
        self.line = line
        self.account = line.account
        self.parent = parent
        self.tokens = tokens
        self.order_s = order_s
        self.state = State.WAITING


def _order_s(ticket: Ticket) -> float:
    return ticket.order_s


def limited(settings: AdmissionSettings, tenants: Mapping[str, Tenant]) -> bool:
    """Whether anything is limited."""
    own = any(one.concurrency_limit_count or one.queued_limit_tokens for one in tenants.values())
    return bool(settings.concurrency_limit_count or settings.queued_limit_tokens or own)


class Admission:
    """One worker's. workers: how many share the limits. shares: tenants' limits come in portions.
    sized: some limit counts tokens. Times: monotonic seconds."""

    def __init__(
        self,
        settings: AdmissionSettings,
        tenants: Mapping[str, Tenant],
        workers: int = 1,
        *,
        shares: bool = False,
    ) -> None:
        self._shares = shares
        self._accounts: dict[str, TenantAccount] = {}
        self._lines: dict[tuple[str, int], ClassQueue] = {}
        # By class, lines with something waiting; the first is next.
        self._turns: list[deque[ClassQueue]] = [deque() for _ in CLASSES]
        self.running = 0
        self.waiting = 0
        self.tokens = 0
        self._left_s = 0.0
        self._gap_s = 0.0
        self.configure(settings, tenants, workers)

    def configure(
        self, settings: AdmissionSettings, tenants: Mapping[str, Tenant], workers: int = 1
    ) -> list[Ticket]:
        """Other limits; who is admitted by that. Who was admitted stays so, and who waits keeps
        its place in the queue, within its tenant's class."""
        self._workers = workers
        self._tenants = tenants
        self._limit = per_worker(settings.concurrency_limit_count, workers)
        self._limit_tokens = per_worker(settings.queued_limit_tokens, workers)
        self._queue_limit = per_worker(settings.queue_limit_count, workers)
        self._lead_s = settings.sibling_lead_s
        self._long_tokens = settings.long_prompt_tokens
        own = any(tenant.queued_limit_tokens for tenant in tenants.values())
        self.sized = bool(own or self._limit_tokens or self._long_tokens)
        for account in self._accounts.values():
            self._limits(account)
        waiting = [ticket for turns in self._turns for line in turns for ticket in line.queue]
        self._lines.clear()
        self._turns = [deque() for _ in CLASSES]
        for ticket in sorted(waiting, key=_order_s):
            ticket.line = self._line(ticket.account.name, ticket.tokens)
            self._queue(ticket)
        return self._fill()

    def ask(
        self, tenant: str, tokens: int, now: float, parent: int = 0
    ) -> tuple[Ticket, Ticket | None]:
        """A new claim, and the one it displaced. It is admitted, waits, or is gone at once.
        parent: a number for who waits for it and others, 0 for nobody."""
        line = self._line(tenant, tokens)
        account = line.account
        order_s = now
        if parent:
            since_s = account.parents.asked(parent, now, self._lead_s)
            order_s = max(since_s, now - self._lead_s)
        ticket = Ticket(line, tokens, order_s, parent)
        # Whoever waits was here before, unless only its own limits hold it.
        if not self._next() and self._takes(tokens) and not line.queue and account.takes(tokens):
            self._admit(ticket)
            return ticket, None
        displaced = None
        if self.waiting >= self._queue_limit:
            displaced = self._worse_than(line)
            if displaced is None:
                ticket.state = State.GONE
                account.parents.ended(parent, now)
                return ticket, None
            self._unqueue(displaced)
            displaced.account.parents.ended(displaced.parent, now)
        self._queue(ticket)
        self.waiting += 1
        return ticket, displaced

    def computed(self, ticket: Ticket) -> list[Ticket]:
        """Its prompt is computed; who is admitted by that."""
        if ticket.state is not State.ADMITTED or not ticket.tokens:
            return []
        self.tokens -= ticket.tokens
        ticket.account.tokens -= ticket.tokens
        ticket.tokens = 0
        return self._fill()

    def leave(self, ticket: Ticket, now: float) -> list[Ticket]:
        """The request is over, or does not wait any longer; who is admitted by that."""
        if ticket.state is not State.GONE:
            ticket.account.parents.ended(ticket.parent, now)
        if ticket.state is State.WAITING:
            self._unqueue(ticket)
        elif ticket.state is State.ADMITTED:
            ticket.state = State.GONE
            self.running -= 1
            ticket.account.running -= 1
            self.tokens -= ticket.tokens
            ticket.account.tokens -= ticket.tokens
            gap_s = min(now - self._left_s, 1.0) if self._left_s else 0.0
            self._gap_s += _GAP_WEIGHT * (gap_s - self._gap_s)
            self._left_s = now
        return self._fill()

    def places(self) -> dict[str, Place]:
        """Return what tenants have and want of what is limited, by key."""
        waiting: dict[str, list[int]] = {}
        for turns in self._turns:
            for line in turns:
                waiting.setdefault(line.account.name, []).extend(one.tokens for one in line.queue)
        places: dict[str, Place] = {}
        for name, account in self._accounts.items():
            places |= account.places(waiting.get(name, []))
        return places

    def portion(self, portions: Mapping[str, int]) -> list[Ticket]:
        """Take other portions, by key; who is admitted by that."""
        for key, portion in portions.items():
            self._account(key.rpartition("/")[0]).portions[key] = portion
        return self._fill()

    def over(self, ticket: Ticket) -> bool:
        """Whether its tenant's own limits are what keeps it out."""
        return not ticket.account.takes(ticket.tokens)

    @property
    def parents_size_bytes(self) -> int:
        """Memory of what is known of parents, estimated."""
        return sum([account.parents.size_bytes for account in self._accounts.values()])

    def retry_after_s(self) -> int:
        """When what waits now will have been served, about; whole seconds."""
        return min(max(math.ceil((self.waiting + 1) * self._gap_s), 1), _RETRY_LIMIT_S)

    def _line(self, name: str, tokens: int) -> ClassQueue:
        account = self._account(name)
        is_long = self._long_tokens and tokens > self._long_tokens
        rank = len(CLASSES) - 1 if is_long else account.rank
        line = self._lines.get((name, rank))
        if line is None:
            line = self._lines[name, rank] = ClassQueue(account, rank)
        return line

    def _account(self, name: str) -> TenantAccount:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = TenantAccount(name)
            self._limits(account)
        return account

    def _limits(self, account: TenantAccount) -> None:
        tenant = self._tenants.get(account.name) or Tenant()
        account.rank = CLASSES.index(tenant.priority)
        workers = 1 if self._shares else self._workers
        account.shares = self._shares
        account.limit = per_worker(tenant.concurrency_limit_count, workers)
        account.limit_tokens = per_worker(tenant.queued_limit_tokens, workers)

    def _takes(self, tokens: int) -> bool:
        return fits(self.running, 1, self._limit) and fits(self.tokens, tokens, self._limit_tokens)

    def _admit(self, ticket: Ticket) -> None:
        ticket.state = State.ADMITTED
        self.running += 1
        ticket.account.running += 1
        self.tokens += ticket.tokens
        ticket.account.tokens += ticket.tokens

    def _next(self) -> Ticket | None:
        """Whose turn it is, of those whose own limits let them."""
        for turns in self._turns:
            for line in turns:
                if line.account.takes(line.queue[0].tokens):
                    return line.queue[0]
        return None

    def _fill(self) -> list[Ticket]:
        admitted = []
        while (ticket := self._next()) is not None and self._takes(ticket.tokens):
            line = ticket.line
            self._unqueue(ticket)
            if line.queue:  # its next turn comes after everybody else's
                turns = self._turns[line.rank]
                turns.remove(line)
                turns.append(line)
            self._admit(ticket)
            admitted.append(ticket)
        return admitted

    def _queue(self, ticket: Ticket) -> None:
        line = ticket.line
        if not line.queue:
            self._turns[line.rank].append(line)
        insort(line.queue, ticket, key=_order_s)  # of equals the first stays first

    def _unqueue(self, ticket: Ticket) -> None:
        line = ticket.line
        line.queue.remove(ticket)
        if not line.queue:
            self._turns[line.rank].remove(line)
        ticket.state = State.GONE
        self.waiting -= 1

    def _worse_than(self, line: ClassQueue) -> Ticket | None:
        """The last claim of who has most waiting in the worst class, if that is worse."""
        for rank in range(len(CLASSES) - 1, line.rank - 1, -1):
            if self._turns[rank]:
                longest = max(self._turns[rank], key=lambda one: len(one.queue))
                if rank == line.rank and len(longest.queue) <= len(line.queue) + 1:
                    return None
                return longest.queue[-1]
        return None

"""Agents whose parents send bursts of sub-agents: is what they share computed once?

    python -m bench agents [--tasks N] [--json]

Users each work through tasks: a parent's turn, then all its sub-agents at once, which share most of
a prompt that nobody has computed yet and take one to three turns, then the parent's next turn, once
the last of them is done. Simulated time, in the model of `tokenlane replay`, with the product's own
router and admission.

Invariants:
- Every way of routing sees the same tasks: prompts and times to think are drawn before.
- What waits for something is sent when that has ended: what comes late makes all behind it late.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from bench.loads.agent_tasks import BLOCK_TOKENS, OUTPUT_TOKENS, Prompt, Task, tasks
from bench.tools.statistics import Cell, quantile, table
from tokenlane.admission.policy import Admission, State, Ticket
from tokenlane.config.settings import AdmissionSettings, RoutingSettings
from tokenlane.replay.baselines import BASELINES
from tokenlane.replay.run import FleetShape, RoutedRequest, new_router
from tokenlane.replay.timed_fleet import ADDED_S, Held, Sender, TimedFleet
from tokenlane.replay.trace import Request, packed
from tokenlane.routing.decision import Query

# Caches that nothing of this fills: what is computed twice was sent to two replicas.
SHAPE = FleetShape(4, cache_blocks=1_000_000)
# Users and sub-agents of each, and the published time before the first kernel (ms).
PUBLISHED_MS = {(4, 0): 53, (4, 3): 555, (4, 12): 3000, (8, 12): 8000, (1, 12): None}
SEEDS = 3


class _Ended(NamedTuple):
    """A sender that also tells of the end."""

    sender: Sender
    done: Callable[[], object]

    def send(self, request: Request, now_s: float) -> tuple[int, Held]:
        place, held = self.sender.send(request, now_s)

        def end() -> None:
            held.end()
            self.done()

        return place, Held(held.first_byte, end)


class Door:
    """Requests on their way to the fleet, through the product's admission where there is one."""

    def __init__(self, fleet: TimedFleet, sender: Sender, admission: Admission | None) -> None:
        self.fleet, self.sender, self._admission = fleet, sender, admission
        self._asked: dict[Ticket, tuple[Request, Callable[[], object]]] = {}

    def ask(self, prompt: Prompt, parent: int, done: Callable[[], object]) -> None:
        """A request, now; done: called at its last token."""
        tokens, now_s = len(prompt) * BLOCK_TOKENS, self.fleet.now_s
        request = Request(now_s, tokens, OUTPUT_TOKENS, packed(prompt), parent)
        if self._admission is None:
            self.fleet.arrive(request, _Ended(self.sender, done))
            return
        ticket, _ = self._admission.ask("", tokens, now_s, parent)
        assert ticket.state is not State.GONE
        self._asked[ticket] = request, done
        if ticket.state is State.ADMITTED:
            self._enter([ticket])

    def _enter(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            request, done = self._asked.pop(ticket)
            self.fleet.arrive(request, _Ended(self.sender, partial(self._leave, ticket, done)))

    def _leave(self, ticket: Ticket, done: Callable[[], object]) -> None:
        assert self._admission is not None
        self._enter(self._admission.leave(ticket, self.fleet.now_s))
        done()


class User:
    """Works through its tasks. took_s: of each, from its first request to its last token."""

    def __init__(self, door: Door, mine: list[Task]) -> None:
        self._door = door
        self._tasks = iter(mine)
        self._open = 0
        self._began_s = 0.0
        self.took_s: list[float] = []

    def begin(self) -> None:
        """The next task, after some thought."""
        task = next(self._tasks, None)
        if task is not None:
            fleet = self._door.fleet
            fleet.at(fleet.now_s + task.think_s, lambda: self._first(task))

    def _first(self, task: Task) -> None:
        self._began_s = self._door.fleet.now_s
        self._door.ask(task.first, task.parent, lambda: self._spawn(task))

    def _spawn(self, task: Task) -> None:
        self._open = len(task.children)
        if not self._open:
            self._second(task)
        for turns in task.children:
            self._child(task, turns)

    def _child(self, task: Task, turns: list[Prompt]) -> None:
        if turns:
            self._door.ask(turns[0], task.parent, lambda: self._child(task, turns[1:]))
            return
        self._open -= 1
        if not self._open:
            self._second(task)

    def _second(self, task: Task) -> None:
        self._door.ask(task.second, task.parent, self._finished)

    def _finished(self) -> None:
        self.took_s.append(self._door.fleet.now_s - self._began_s)
        self.begin()


class Late(RoutedRequest):
    """Learns where a prompt is when it is answered, not when it is sent."""

    def send(self, request: Request, now_s: float) -> tuple[int, Held]:
        router, tokens = self.router, request.prompt_tokens
        query = Query(request.blocks, BLOCK_TOKENS, tokens, tokens, router.draw())
        choice = router.decide(query, router.eligible(None, now_s), now_s).choice
        lease = router.attempt(choice, Query(b"", BLOCK_TOKENS, tokens, tokens), now_s)
        lease.__enter__()

        def first_byte(when_s: float) -> None:
            lease.first_byte(when_s)
            router.learn(choice.slot, request.blocks, when_s)

        return choice.slot, Held(first_byte, partial(lease.__exit__, None, None, None))


class Unaware(RoutedRequest):
    """Is not told who waits for a request."""

    def send(self, request: Request, now_s: float) -> tuple[int, Held]:
        return super().send(request._replace(parent=0), now_s)


def _sender(kind: type[RoutedRequest], policy: str = "affinity") -> Sender:
    base = BASELINES.get(policy)
    settings = RoutingSettings(policy="affinity" if base is not None else policy)
    router = new_router(settings, base)
    router.update(SHAPE.state(BLOCK_TOKENS))
    return kind(router, BLOCK_TOKENS)


WAYS: dict[str, Callable[[], Sender]] = {
    "round-robin": lambda: _sender(RoutedRequest, "round-robin"),
    "least-work": lambda: _sender(RoutedRequest, "least-work"),
    "min(queue + own)": lambda: _sender(RoutedRequest, "queue-own"),
    "affinity, told by answers": lambda: _sender(Late),
    "affinity, no parents": lambda: _sender(Unaware),
    "affinity": lambda: _sender(RoutedRequest),
}
# Requests at once, and how much earlier siblings may count.
PLACES = 32
LEADS_S = 0.0, 5.0, 20.0


class Outcome(msgspec.Struct, frozen=True):
    """Of all parents. took_…_s: from a parent's first request to its last token. prefixes: how
    often what sub-agents share was computed, for each parent (None: there are none). waited_ms:
    before the prefill of a request begins, mean. computed_tokens: in all."""

    took_mean_s: float
    took_p95_s: float
    prefixes: float | None
    waited_ms: float
    computed_tokens: int


def run(crowd: tuple[int, int], way: str, count: int, lead_s: float | None = None) -> Outcome:
    """SEEDS runs taken together. lead_s: with limited places and this lead for siblings."""
    took_s: list[float] = []
    waited_s: list[float] = []
    times: list[float] = []
    computed = 0
    for seed in range(SEEDS):
        made = tasks(*crowd, count, seed)
        fleet = SHAPE.fleet(BLOCK_TOKENS)
        door = Door(fleet, WAYS[way](), None if lead_s is None else _admission(lead_s))
        users = [User(door, mine) for mine in made]
        for user in users:
            user.begin()
        served = fleet.run([], door.sender)
        took_s += [took for user in users for took in user.took_s]
        shared = {
            packed(turns[0]): task for mine in made for task in mine for turns in task.children
        }
        prefixes: Counter[int] = Counter()
        for one in served:
            computed += one.computed_tokens
            prefill_s = one.computed_tokens / SHAPE.prefill_tokens_per_s
            waited_s.append(one.ttft_s - ADDED_S - prefill_s)
            task = shared.get(one.request.blocks)
            if task is not None:
                prefixes[task.parent] += max(task.shared_tokens - one.cached_tokens, 0)
        times += [
            prefixes[task.parent] / task.shared_tokens
            for mine in made
            for task in mine
            if task.children
        ]
    assert len(took_s) == SEEDS * crowd[0] * count
    late_s = quantile(took_s, 0.95)
    assert late_s is not None
    prefix_times = fmean(times) if times else None
    return Outcome(fmean(took_s), late_s, prefix_times, 1e3 * fmean(waited_s), computed)


def _admission(lead_s: float) -> Admission:
    limits = AdmissionSettings(
        concurrency_limit_count=PLACES, queue_limit_count=100_000, sibling_lead_s=lead_s
    )
    return Admission(limits, {})


def measure(count: int) -> dict[str, Any]:
    """All crowds, all ways; then the queue of the gateway."""
    ways = {
        f"{users} x {agents}": {way: run((users, agents), way, count) for way in WAYS}
        for users, agents in PUBLISHED_MS
    }
    queued = {
        f"{users} x {agents}": {
            f"{lead_s:g}": run((users, agents), "affinity", count, lead_s) for lead_s in LEADS_S
        }
        for users, agents in PUBLISHED_MS
        if users * agents > PLACES
    }
    return {
        "replicas": SHAPE.replicas,
        "prefill_tokens_per_s": SHAPE.prefill_tokens_per_s,
        "tasks": count * SEEDS,
        "published_ms": {f"{u} x {a}": ms for (u, a), ms in PUBLISHED_MS.items()},
        "ways": ways,
        "places": PLACES,
        "queued": queued,
    }


def _row(first: Sequence[Cell], one: Outcome) -> list[Cell]:
    waited_ms, thousands = round(one.waited_ms), one.computed_tokens // 1000
    return [*first, one.took_mean_s, one.took_p95_s, one.prefixes, waited_ms, thousands]


def show(made: dict[str, Any]) -> str:
    """Two tables."""
    columns = ["parent done s", "p95 s", "prefix computed", "before prefill ms", "k tokens"]
    rows = [
        _row([f"{crowd}: {way}", made["published_ms"][crowd]], one)
        for crowd, ways in made["ways"].items()
        for way, one in ways.items()
    ]
    queued = [
        _row([f"{crowd}: siblings lead by {lead} s"], one)
        for crowd, leads in made["queued"].items()
        for lead, one in leads.items()
    ]
    return "\n".join(
        [
            (
                f"{made['tasks']} tasks of each user, {made['replicas']} replicas of"
                f" {made['prefill_tokens_per_s']:,.0f} tokens/s"
            ),
            "",
            table(["users x sub-agents", "published ms", *columns], rows),
            "",
            f"at most {made['places']} requests at once, the others wait in the gateway",
            "",
            table(["users x sub-agents", *columns], queued),
        ]
    )


def main() -> None:
    """Prints the tables, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench agents")
    parser.add_argument("--tasks", type=int, default=5, help="of each user, in each of three runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    made = measure(options.tasks)
    print(json.dumps(msgspec.to_builtins(made), indent=1) if options.json else show(made))


if __name__ == "__main__":
    main()

"""Look-ahead: what it would give to hold requests in the gateway and choose which goes next.

    python -m bench lookahead --trace FILE [--replicas 4] [--speed 1] [--cache 0.25] [--spread S]

A replica is sent a prompt at a time, and one to wait behind it; the others are held, and the next
is chosen from all that are. *Bound early*: a request is routed when it arrives, and waits for that
replica. *Bound late*: it is routed when it is sent, by what is true then; what was passed over
counts as queued where it would have gone. FILE is a Mooncake trace, agent prompts as text (JSONL)
or arrivals and lengths (CSV). Simulated time, in the model of `tokenlane replay`, with the
product's own router.

Invariants:
- Replicas never see more than was sent: a simulated queue is as long as the rule says.
- What is held counts as in flight where it will go, in the index too where it is bound early: the
  next decision sees it.
"""

import argparse
import json
from bisect import insort
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

from bench.loads import arrival_times
from bench.loads import text_trace as texts
from bench.tools.demo_model import MODEL, MODEL_FOLDER
from bench.tools.processes import BenchError
from bench.tools.statistics import Cell, table
from tokenlane.config.settings import RoutingSettings
from tokenlane.protocols.bodies import ChatFields
from tokenlane.replay import trace as traces
from tokenlane.replay.bounds import oracle, pooled_hit
from tokenlane.replay.run import Figures, FleetShape, RoutedRequest, new_router, replay
from tokenlane.replay.timed_fleet import Held, Served, TimedFleet, split
from tokenlane.replay.trace import Request, Trace
from tokenlane.routing.decision import Choice, Query
from tokenlane.routing.router import Router
from tokenlane.tokens.blocks import block_hashes
from tokenlane.tokens.tokenizer import Tokenizer

# At a replica without a first token: one is computed, one waits.
SENT_LIMIT = 2
# Of those held so many are looked at for a free place, the first in their order.
WINDOW = 32
TEXT_BLOCK_TOKENS = 16


class Rule(NamedTuple):
    """late: routed when it is sent. weight: a request counts as having come later by so many times
    its own prefill; None: the shortest goes first, whatever waits. by_length: its whole prompt
    counts, not what is uncached of it (a door that has not read the prompt knows no more)."""

    late: bool = False
    weight: float | None = 0.0
    by_length: bool = False


RULES: dict[str, Rule] = {
    "early, in order": Rule(),
    "early, + 1 prefill": Rule(weight=1.0),
    "early, + 3 prefills": Rule(weight=3.0),
    "early, + 10 prefills": Rule(weight=10.0),
    "early, + 3 whole prompts": Rule(weight=3.0, by_length=True),
    "early, shortest first": Rule(weight=None),
    "late, in order": Rule(late=True),
    "late, + 3 prefills": Rule(late=True, weight=3.0),
    "late, + 3 whole prompts": Rule(late=True, weight=3.0, by_length=True),
    "late, shortest first": Rule(late=True, weight=None),
}


class Waiting(NamedTuple):
    """A request that is held. key: its place in the order. choice: where it was bound to."""

    key: float
    query: Query
    request: Request
    choice: Choice


def _key(one: Waiting) -> float:
    return one.key


class Hall:
    """The gateway with requests in hand; a Sender for those that it lets go."""

    def __init__(self, fleet: TimedFleet, router: Router, trace: Trace, rule: Rule) -> None:
        self._fleet, self._router, self._rule = fleet, router, rule
        self._block_tokens = trace.block_tokens
        self._rate = fleet.replicas[0].prefill_tokens_per_s
        self._waiting: list[Waiting] = []
        self._sent = [0] * len(fleet.replicas)
        self._going: Waiting | None = None

    def ask(self, request: Request) -> None:
        """A request arrives."""
        router, now_s = self._router, self._fleet.now_s
        query = Query(
            request.blocks,
            self._block_tokens,
            request.prompt_tokens,
            request.prompt_tokens,
            router.draw(),
        )
        choice = router.decide(query, router.eligible(None, now_s), now_s).choice
        one = Waiting(self._order(request, choice), query, request, choice)
        if not self._rule.late:
            self._count(one, 1)
            router.index.insert(choice.slot, request.blocks)
        insort(self._waiting, one, key=_key)
        # Behind all that arrive at this instant: events of one time keep their order.
        self._fleet.at(now_s, self._fill)

    def send(self, request: Request, now_s: float) -> tuple[int, Held]:
        """The one that was let go (for the fleet)."""
        going = self._going
        assert going is not None
        assert going.request is request
        slot = going.choice.slot
        lease = self._router.attempt(going.choice, going.query, now_s)
        lease.__enter__()

        def first_byte(when_s: float) -> None:
            lease.first_byte(when_s)
            self._sent[slot] -= 1
            self._fill()

        return slot, Held(first_byte, partial(lease.__exit__, None, None, None))

    def _order(self, request: Request, choice: Choice) -> float:
        rule = self._rule
        tokens = request.prompt_tokens if rule.by_length else choice.uncached_tokens
        if rule.weight is None:
            return tokens
        return request.arrival_s + rule.weight * tokens / self._rate

    def _count(self, one: Waiting, sign: int) -> None:
        tokens = sign * one.choice.uncached_tokens
        self._router._board.add(one.choice.slot, sign, tokens)  # noqa: SLF001 - as a lease would

    def _fill(self) -> None:
        """Lets go whoever may."""
        while min(self._sent) < SENT_LIMIT:
            one = self._next_late() if self._rule.late else self._next_early()
            if one is None:
                return
            self._sent[one.choice.slot] += 1
            self._going = one
            self._fleet.arrive(one.request, self)

    def _next_early(self) -> Waiting | None:
        for at, one in enumerate(self._waiting):
            if self._sent[one.choice.slot] < SENT_LIMIT:
                del self._waiting[at]
                self._count(one, -1)
                return one
        return None

    def _next_late(self) -> Waiting | None:
        router, now_s = self._router, self._fleet.now_s
        eligible = router.eligible(None, now_s)
        passed: list[Waiting] = []
        found = None
        for at, one in enumerate(self._waiting[:WINDOW]):
            anew = one._replace(choice=router.decide(one.query, eligible, now_s).choice)
            if self._sent[anew.choice.slot] < SENT_LIMIT:
                found = anew
                del self._waiting[at]
                break
            self._count(anew, 1)
            passed.append(anew)
        for one in passed:
            self._count(one, -1)
        return found


def held(trace: Trace, shape: FleetShape, rule: Rule) -> list[Served]:
    """The trace through a gateway that holds requests."""
    router = new_router(RoutingSettings())
    router.update(shape.state(trace.block_tokens))
    fleet = shape.fleet(trace.block_tokens)
    hall = Hall(fleet, router, trace, rule)
    for request in trace.requests:
        fleet.at(request.arrival_s, partial(hall.ask, request))
    return fleet.run([], RoutedRequest(router, trace.block_tokens))


def read(path: Path) -> Trace:
    """A trace of any kind. Raises BenchError or TraceError with what is wrong with the file."""
    if ".csv" in path.suffixes:
        return _lengths(path)
    try:
        rows = texts.rows(path)
    except BenchError:
        return traces.read(path)
    return _prompts(path, rows)


def spread(trace: Trace, within_s: float) -> Trace:
    """Every arrival later by a random time below `within_s`: of a trace whose clock ticks that
    slowly, what comes with one tick did not come at once."""
    random = Random(1)
    moved = [one._replace(arrival_s=one.arrival_s + within_s * random.random())
             for one in trace.requests]  # fmt: skip
    return trace._replace(requests=sorted(moved, key=lambda one: one.arrival_s))


def _lengths(path: Path) -> Trace:
    """Prompts that share nothing."""
    size, fresh = traces.MOONCAKE_BLOCK_TOKENS, iter(range(2**32))
    requests = [
        Request(
            one.due_s,
            max(one.tokens, 1),
            0,
            traces.packed([next(fresh) for _ in range(one.tokens // size)]),
        )
        for one in arrival_times.read(path)
    ]
    return Trace(path.name.partition(".")[0], size, requests)


def _prompts(path: Path, rows: list[texts.Row]) -> Trace:
    """Text, each prompt one message."""
    tokenizer = Tokenizer.load(MODEL, MODEL_FOLDER)
    requests = []
    for row, turn in zip(rows, texts.turns(rows, MODEL, 1), strict=True):
        ids = tokenizer.chat_ids(msgspec.json.decode(turn.body, type=ChatFields))
        said = len(tokenizer.encode(row.output, add_special_tokens=False)) // 4
        blocks = block_hashes(ids, TEXT_BLOCK_TOKENS)
        requests.append(Request(turn.due_s, len(ids) // 4, said, blocks))
    return Trace(traces.name_of(path), TEXT_BLOCK_TOKENS, requests)


class Outcome(msgspec.Struct, frozen=True):
    """hit: of all prompt tokens. ttft_…_s: since arrival, waiting in the gateway included."""

    hit: float
    ttft_mean_s: float
    ttft_p99_s: float
    ttft_max_s: float
    imbalance_60s: float

    @classmethod
    def of(cls, served: list[Served], replicas: int) -> "Outcome":
        """From every request."""
        told = Figures.of(served, replicas)
        longest_s = max(one.ttft_s for one in served)
        return cls(told.hit, told.ttft_mean_s, told.ttft_p99_s, longest_s, told.imbalance_60s)


def measure(trace: Trace, replicas: int, cache: float) -> dict[str, Any]:
    """All rules, beside what the product does and the oracle. cache: of all replicas together, as
    a share of the trace's distinct blocks."""
    shape = FleetShape(replicas, split(trace.working_set_blocks, cache, replicas))
    ways: dict[str, Callable[[], list[Served]]] = {
        "shared-cache oracle": lambda: oracle(trace, shape),
        "sent at once (affinity)": lambda: replay(trace, shape, RoutingSettings()),
        **{name: partial(held, trace, shape, rule) for name, rule in RULES.items()},
    }
    return {
        "trace": trace.name,
        "requests": len(trace.requests),
        "replicas": replicas,
        "pooled_bound_hit": pooled_hit(trace, replicas * shape.cache_blocks),
        "ways": {name: Outcome.of(way(), replicas) for name, way in ways.items()},
    }


def show(made: dict[str, Any]) -> str:
    """A table."""
    best = made["ways"]["shared-cache oracle"].ttft_mean_s
    pooled = made["pooled_bound_hit"]
    rows: list[list[Cell]] = [
        [
            name,
            100 * one.hit / pooled if pooled else None,
            one.ttft_mean_s,
            one.ttft_mean_s / best,
            one.ttft_p99_s,
            one.ttft_max_s,
            one.imbalance_60s,
        ]
        for name, one in made["ways"].items()
    ]
    columns = ["hits % of pooled", "TTFT mean s", "of oracle", "p99 s", "max s", "imbalance"]
    return "\n".join(
        [
            (
                f"{made['trace']}: {made['requests']:,} requests, {made['replicas']} replicas,"
                f" pooled bound {pooled:.1%}"
            ),
            "",
            table(["held in the gateway", *columns], rows),
        ]
    )


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench lookahead")
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--speed", type=float, default=1.0, help="times the trace's own pace")
    parser.add_argument("--cache", type=float, default=0.25, help="share of distinct blocks")
    parser.add_argument("--spread", type=float, default=0.0, metavar="S", help="the clock's tick")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    trace = spread(read(options.trace), options.spread).faster(options.speed)
    made = measure(trace, options.replicas, options.cache)
    print(json.dumps(msgspec.to_builtins(made), indent=1) if options.json else show(made))


if __name__ == "__main__":
    main()

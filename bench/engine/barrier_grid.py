"""From where on ids matter: prompt length, cache hit rate and clients, by text and by ids.

    python -m bench barrier_grid [--quick | --full]

Closed loop, straight to one vLLM server, one token out. A hit rate of 0.5 means that the first half
of every prompt is known to the engine's cache and the rest is new. Ids are made beforehand. They
matter where they give a third more requests: less is what the machine varies by. What a slow
machine has no time for is left out: what takes the engine longest to read comes last.
"""

import math
from collections.abc import Collection
from typing import Any, NamedTuple

from bench.engine.barrier import MATTERS
from bench.loads.clients import Served, Spender, better, drive, in_time, others_remark, warm
from bench.loads.closed_loop import Plan
from bench.loads.engine_prompts import EnginePrompts
from bench.loads.workload import CHAT
from bench.tools import machine
from bench.tools.command_line import Options, main
from bench.tools.finding import Beside, Finding, Plot, Series, Shape, Table, times
from bench.tools.processes import BenchError, say
from bench.tools.statistics import Cell, ratio
from bench.tools.vllm_server import vllm_server

# New prompts of a run: twice as many as the fastest server seen here could answer at 250 tokens and
# a third more at longer ones, and three a client.
MOST_PER_S, MOST_TOKENS_PER_S = 2_500, 1_000_000
# Nothing is begun later: a spot takes up to a minute, and a part of the laboratory has 15.
LIMIT_S = 780.0


class Spot(NamedTuple):
    """One point of the grid."""

    clients: int
    hits: float
    tokens: int

    def __str__(self) -> str:
        clients = f"{self.clients} client{'s' * (self.clients > 1)}"
        return f"{clients}, {self.hits:.0%} hits, {self.tokens:,} tokens"

    @property
    def new_tokens(self) -> float:
        """What the engine has to read for an answer to each client."""
        return self.clients * self.tokens * (1 - self.hits)


def new_count(spot: Spot, seconds_s: float) -> int:
    """Return how many new prompts last so long."""
    per_s = min(MOST_PER_S, MOST_TOKENS_PER_S / spot.tokens)
    return max(3 * spot.clients, int(per_s * seconds_s))


def bodies(prompts: EnginePrompts, spot: Spot, seconds_s: float) -> list[bytes]:
    """Return the chats of a spot: those that are known as a whole, or enough new ones."""
    if spot.hits == 1:
        return prompts.known(spot.tokens)
    return prompts.new(new_count(spot, seconds_s), spot.tokens, spot.hits)


def sent_once(spot: Spot, plan: Plan, got: Served) -> Served:
    """Return the run. Raise BenchError where prompts that were to be new were sent again."""
    if spot.hits < 1 and len(got.calls) > len(plan.bodies):
        raise BenchError(
            f"{spot}: {len(got.calls):,} requests of {len(plan.bodies):,} new prompts, "
            "so some were known"
        )
    return got


def plan_of(port: int, prompts: EnginePrompts, spot: Spot, as_ids: bool, seconds_s: float) -> Plan:
    """Return the load of a spot; the engine's cache knows what it is to know of it."""
    texts = bodies(prompts, spot, seconds_s + 1.0)
    warm(port, CHAT, texts if spot.hits == 1 else texts[:1])
    given = prompts.as_ids(texts) if as_ids else texts
    return Plan(port, CHAT, given, spot.clients, seconds_s, limit_s=20.0)


def run(options: Options) -> Finding:
    """Measure every spot by text and by ids."""
    facts = machine.facts()
    grid = [
        Spot(clients, hits, tokens)
        for clients in options.pick((1,), (1, 16), (1, 8, 32))
        for hits in options.pick((1.0,), (0.0, 0.5, 1.0), (0.0, 0.5, 0.9, 1.0))
        for tokens in options.pick((500,), (250, 1_000, 4_000), (250, 1_000, 4_000, 16_000))
    ]
    spots = sorted(grid, key=lambda spot: spot.new_tokens)
    rounds, limit_s = options.pick(1, 2, 2), options.pick(math.inf, 240.0, LIMIT_S)
    seconds_s = options.pick(0.5, 1.2, 1.5)
    prompts = EnginePrompts()
    got: dict[Spot, tuple[Served, Served]] = {}
    with vllm_server() as server:
        spenders: dict[str, Spender] = {"front end": server.front, "engine": server.engine}
        for spot in in_time(spots, rounds, limit_s):
            say(f"  barrier_grid, {spot}")
            runs = []
            for as_ids in (False, True):
                plan = plan_of(server.port, prompts, spot, as_ids, seconds_s)
                runs.append(sent_once(spot, plan, drive(plan, spenders)))
            text, ids = runs
            before = got.get(spot, (None, None))
            got[spot] = better(before[0], text), better(before[1], ids)
        about = server.about()
    return finding(facts, got, about, [spot for spot in grid if spot not in got])


def gains(got: dict[Spot, tuple[Served, Served]]) -> dict[Spot, float]:
    """Return how many times the requests ids give, where that is known."""
    found = {spot: ratio(ids.per_s, text.per_s) for spot, (text, ids) in got.items()}
    return {spot: gain for spot, gain in found.items() if gain is not None}


def from_where(gain: dict[Spot, float]) -> dict[tuple[int, float], int | None]:
    """Return the length from which on ids matter, at it and all that are longer, by clients and
    hit rate; None where they do not even at the longest."""
    found: dict[tuple[int, float], int | None] = {}
    for spot in sorted(gain, key=lambda one: -one.tokens):
        key = (spot.clients, spot.hits)
        longer = [one for one in gain if one[:2] == key and one.tokens >= spot.tokens]
        matters = all(gain[one] >= MATTERS for one in longer)
        found[key] = spot.tokens if matters else found.get(key)
    return found


def told(where: dict[tuple[int, float], int | None]) -> str:
    """Return the answer in one sentence."""
    parts = [
        f"{clients} client{'s' * (clients > 1)} at {hits:.0%} hits "
        + ("nowhere" if tokens is None else f"from {tokens:,} tokens on")
        for (clients, hits), tokens in sorted(where.items())
    ]
    return f"sending ids gives {MATTERS:g} times the requests: {'; '.join(parts)}"


def finding(
    facts: dict[str, Any],
    measured: dict[Spot, tuple[Served, Served]],
    about: str,
    left: Collection[Spot] = (),
) -> Finding:
    """Return the grid, its curves, and from where on ids matter, for the numbers of clients and hit
    rates that have all lengths. left: spots without a run."""
    got = dict(sorted(measured.items()))
    gain = gains(got)
    cut_short = {spot[:2] for spot in left}
    where = {key: tokens for key, tokens in from_where(gain).items() if key not in cut_short}
    rows: list[list[Cell]] = [
        [f"{spot.clients}, {spot.hits:.0%}, {spot.tokens:,}", text.per_s, ids.per_s,
         gain.get(spot), text.p50_ms, ids.p50_ms, text.failed + ids.failed]
        for spot, (text, ids) in got.items()
    ]  # fmt: skip
    lines = dict.fromkeys(spot[:2] for spot in gain)
    most, least = max(one.clients for one in gain), min(one.hits for one in gain)
    longest = max(one.tokens for one in gain)
    hit = gain.get(Spot(most, 1.0, longest))
    missed = gain.get(Spot(most, least, longest))
    return Finding(
        name="barrier_grid",
        title="from which prompt length, hit rate and number of clients on ids matter",
        machine=facts,
        tables=[
            Table("one token out",
                  ["clients, hits, tokens", "text req/s", "ids req/s", "gain", "text p50 ms",
                   "ids p50 ms", "failed"], rows)
        ],
        plots=[
            Plot(
                title="requests by ids over requests by text", x="prompt tokens", y="x", log="x",
                series=[
                    Series(f"{clients} clients, {hits:.0%} hits",
                           [(float(spot.tokens), value) for spot, value in gain.items()
                            if spot[:2] == (clients, hits)])
                    for clients, hits in lines
                ],
            )
        ],
        published=[Beside("gain by sparing tokenizing", "1.7 x, and under 1 %",
                          f"{min(gain.values()):.2f} to {max(gain.values()):.2f} x")],
        shapes=[
            Shape("known prompts gain more by ids than new ones: what is left is the front end's",
                  None if hit is None or missed is None or least == 1 else hit > missed,
                  f"{times(hit, 1.0)} and {times(missed, 1.0)} for {most} clients at "
                  f"{longest:,} tokens"),
        ],
        answers=[told(where)] if where else [],
        remarks=[
            *(f"{spot}: not measured, the time was over" for spot in left),
            others_remark(one for pair in got.values() for one in pair),
            about,
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "barrier_grid")

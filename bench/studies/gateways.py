"""Several gateways in front of one fleet: what each thing that they tell each other gives.

    python -m bench gateways --trace FILE [--replicas 4] [--speed 1] [--cache 0.25] [--seeds 5]
        [--gateways 4,16]

Mean TTFT of the shared-cache oracle's, in the model of `tokenlane replay`, with the product's own
router in each gateway. Every seed spreads the arrivals over the tick of the trace's clock and draws
which gateway a request comes to; the figures are means over the seeds. FILE is a trace of any kind
that `lookahead` reads.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from bench.studies.lookahead import read
from bench.tools.statistics import Cell, table
from tokenlane.config.settings import RoutingSettings
from tokenlane.replay.bounds import oracle
from tokenlane.replay.gateways import GatewayShape, replay_gateways
from tokenlane.replay.run import Figures, FleetShape
from tokenlane.replay.timed_fleet import Served, split
from tokenlane.replay.trace import Trace

DELAYS_S = (None, 1.0, 0.1)


class Way(msgspec.Struct, frozen=True):
    """Gateways of a policy and what they know; the figures of each seed."""

    policy: str
    shape: GatewayShape
    of_oracle: list[float] = []
    hit: list[float] = []


def ways(counts: Sequence[int]) -> list[Way]:
    """Return what is compared, without figures."""
    first = [Way("affinity", GatewayShape(1, None, events)) for events in (False, True)]
    several = [
        Way("affinity", GatewayShape(count, delay_s, events))
        for count in counts
        for events in (False, True)
        for delay_s in DELAYS_S
    ]
    told = [Way("affinity", GatewayShape(count, 0.1, prefixes=True)) for count in counts]
    hashed = [Way("prefix-hash", GatewayShape(count, events=False)) for count in counts]
    return [*first, *several, *told, *hashed]


def measure(
    trace: Trace, replicas: int, cache: float, seeds: int, counts: Sequence[int]
) -> dict[str, Any]:
    """Replay every way once a seed. cache: of all replicas together, as a share of the trace's
    distinct blocks."""
    shape = FleetShape(replicas, split(trace.working_set_blocks, cache, replicas))
    compared = ways(counts)
    for seed in range(1, seeds + 1):
        spread = trace.spread(seed)
        best_s = Figures.of(oracle(spread, shape), replicas).ttft_mean_s
        for way in compared:
            told = Figures.of(_served(spread, shape, way, seed), replicas)
            way.of_oracle.append(told.ttft_mean_s / best_s)
            way.hit.append(told.hit)
    return {"trace": trace.name, "replicas": replicas, "seeds": seeds, "ways": compared}


def _served(trace: Trace, shape: FleetShape, way: Way, seed: int) -> list[Served]:
    gateways = way.shape._replace(seed=seed)
    return replay_gateways(trace, shape, gateways, RoutingSettings(policy=way.policy))


def show(made: dict[str, Any]) -> str:
    """A table."""
    rows: list[list[Cell]] = [
        [
            way.policy,
            way.shape.gateways,
            "yes" if way.shape.events else "no",
            ("load, prefixes" if way.shape.tells_prefixes else "load")
            if way.shape.share_delay_s is not None
            else "nothing",
            way.shape.share_delay_s,
            mean(way.of_oracle),
            max(way.of_oracle),
            100 * mean(way.hit),
        ]
        for way in made["ways"]
    ]
    columns = [
        "policy", "gateways", "events", "told", "after s", "of oracle", "worst seed", "hits %",
    ]  # fmt: skip
    head = f"{made['trace']}: {made['replicas']} replicas, means of {made['seeds']} seeds"
    return f"{head}\n\n{table(columns, rows)}"


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench gateways")
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--speed", type=float, default=1.0, help="times the trace's own pace")
    parser.add_argument("--cache", type=float, default=0.25, help="share of distinct blocks")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--gateways", default="4,16", metavar="K,K", help="how many gateways")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    trace = read(options.trace)
    counts = [int(count) for count in options.gateways.split(",")]
    made = measure(
        trace.faster(options.speed), options.replicas, options.cache, options.seeds, counts
    )
    print(json.dumps(msgspec.to_builtins(made), indent=1) if options.json else show(made))


if __name__ == "__main__":
    main()

"""`make amplification`: looks for the inputs that cost most for their bytes, and writes them down.

    python -m tests.amplification.search [--seed N] [--rounds N] [--only CHANNEL ...]

For each channel a seeded search for most CPU, for the longest turn of the loop and for most memory:
seeds, and what was worst last time, are varied, and the worst varied again. What is worst at 64 KiB
is then measured at the sizes up to the channel's longest. Writes worst.json, which the tests
replay, and docs/amplification.md.
"""

import argparse
import asyncio
import random
from collections.abc import Awaitable, Callable

import uvloop

from bench.tools.processes import say
from tests.amplification import meter, page
from tests.amplification.channels import CHANNELS, Channel, World, world
from tests.amplification.meter import Cost, Peers
from tests.amplification.shapes import Shape, mutated
from tests.amplification.worst import Plain, Worst, kept, read, write

SIZE_BYTES = 64 * 1024
PARENTS = 4
# What takes longer is not made longer.
LONG_S = 1.0
AIMS: dict[str, Callable[[meter.Drive, Peers], Awaitable[Cost]]] = {
    "cpu": meter.cpu,
    "turn": meter.turn,
    "memory": meter.memory,
}


def score(aim: str, cost: Cost, plain: Plain) -> float:
    """What is to be as large as can be."""
    if aim == "cpu":
        return cost.cpu_s / plain.cpu_s(cost.sent_bytes)
    return cost.turn_s if aim == "turn" else (cost.peak_bytes + cost.kept_bytes) / cost.sent_bytes


async def measured(at: World, channel: Channel, shape: Shape, aim: str, size: int) -> Cost:
    """One input."""
    data = shape.bytes_of(min(size, channel.limit_bytes))
    return await AIMS[aim](lambda: channel.drive(at, data), at.peers)


async def hunted(
    at: World, name: str, aim: str, plain: Plain, rounds: int, rng: random.Random
) -> list[Shape]:
    """The worst shapes of a channel at SIZE_BYTES."""
    channel = CHANNELS[name]
    found: dict[Shape, float] = {}
    pending = [*channel.seeds, *(one.shape for one in read() if one.channel == name)]
    for _ in range(rounds + len(pending)):
        if not pending:
            parents = sorted(found, key=lambda one: -found[one])[:PARENTS]
            pending.append(mutated(rng.choice(parents), channel.words, rng))
        shape = pending.pop()
        if shape not in found:
            cost = await measured(at, channel, shape, aim, SIZE_BYTES)
            found[shape] = score(aim, cost, plain)
    return sorted(found, key=lambda one: -found[one])[:2]


async def grown(at: World, name: str, aim: str, shape: Shape, plain: Plain) -> Worst:
    """The size at which a shape is worst, and all it costs there."""
    channel = CHANNELS[name]
    best: tuple[float, int] = 0.0, SIZE_BYTES
    # Of little, memory is what any request takes.
    size = SIZE_BYTES if aim == "memory" else 1024
    while True:
        cost = await measured(at, channel, shape, aim, size)
        best = max(best, (score(aim, cost, plain), size))
        if size >= channel.limit_bytes or max(cost.cpu_s, cost.turn_s) > LONG_S:
            break
        size = min(4 * size, channel.limit_bytes)
    costs = [[await measured(at, channel, shape, one, best[1]) for one in AIMS] for _ in range(3)]
    sent = costs[0][0].sent_bytes
    return Worst(
        name, aim, shape, best[1], sent,
        cpu_s=min(one[0].cpu_s for one in costs),
        plain_s=plain.cpu_s(sent),
        turn_s=min(one[1].turn_s for one in costs),
        peak_bytes=min(one[2].peak_bytes for one in costs),
        kept_bytes=min(one[2].kept_bytes for one in costs),
    )  # fmt: skip


async def run(names: list[str], seed: int, rounds: int) -> None:
    """Writes down the worst of each of these channels, by each aim."""
    made: list[Worst] = []
    async with world() as at:
        plain = await Plain.measured(at)
        for name in names:
            for aim in AIMS:
                rng = random.Random(f"{seed} {name} {aim}")
                shapes = await hunted(at, name, aim, plain, rounds, rng)
                worst = [await grown(at, name, aim, shape, plain) for shape in shapes]
                made.append(max(worst, key=lambda one: one.by(aim)))
                say(made[-1].line())
            write(kept(made))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=40, help="inputs varied, by channel and aim")
    parser.add_argument("--only", action="append", choices=[*CHANNELS], metavar="CHANNEL")
    parsed = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(parsed.only or [*CHANNELS], parsed.seed, parsed.rounds))
    page.write(read())


if __name__ == "__main__":
    main()

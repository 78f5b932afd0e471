"""What plants stalls, and the monitor's verdicts: a whole monitor on a real loop.

The stalls are long and each is tried a few times, since the machine may be busy; what needs a CPU
and got none for two thirds of its time is no trial.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bench.experiments.stalls import ASLEEP, Planted, seen
from bench.tools import planted
from bench.tools.planted import KINDS, STAGES, Plan, Plant
from bench.tools.processes import BenchError
from tokenlane.config.settings import StallSettings
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.segment import MetricsSegment
from tokenlane.telemetry.stalls.monitor import StallMonitor
from tokenlane.telemetry.stalls.stages import CAUSES, LOOP, OTHER, PARSE
from tokenlane.telemetry.stalls.stall import InHand, Stall

LENGTH_S = 0.1
TRIES = 6
# With those that the machine gave no CPU, if they need one: they are waiting, whatever was planted.
MOST_TRIES = 30
IN_HAND = ((InHand("the-request", "/v1/completions", "inspect"),), 1)


@pytest.mark.parametrize("text", ["", "parse", "parse:sleep:0.1", "parse:nap:0.1:1", "a:sleep:1:1",
    "parse:sleep:0:1", "parse:sleep:x:1", "parse:sleep:0.1:0", "parse:sleep:99:1"])  # fmt: skip
def test_what_cannot_be_planted(text: str) -> None:
    with pytest.raises(BenchError, match=planted.VARIABLE):
        Plan.parse(text)


def test_a_plan() -> None:
    plan = Plan.parse("tokenize-local:hold:0.02:50:/tmp/a:b")
    assert plan == ("tokenize-local", "hold", 0.02, 50, "/tmp/a:b")
    assert plan.cause == "tokenize-local"
    causes = {kind: Plan("parse", kind, 1.0, 1).cause for kind in KINDS}
    assert causes == dict.fromkeys(("sleep", "spin", "hold"), "parse") | planted.CAUSE_OF


def test_every_nth_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    plant = Plant(Plan("parse", "sleep", 1e-6, 3, str(log)))
    for _ in range(12):
        plant.marked(PARSE)
        plant.marked(OTHER)
    # The first of the four makes ready.
    plant.close()
    lines = [line.split() for line in log.read_text().splitlines()]
    assert len(lines) == 3
    assert all(float(began) <= float(ended) for began, ended, _ in lines)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    LOOP.on_mark(None)
    LOOP.mark(OTHER)


class Told(list[Stall]):
    """What the monitor told, and the monitor's own metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.segment = MetricsSegment.private()
        self.monitor = StallMonitor(
            StallSettings(),
            self.segment,
            0,
            histogram=self.segment.histogram(families.LOOP_STALL, "0"),
            in_hand=lambda: IN_HAND,
            on_stall=self.append,
        )


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    told = Told()
    told.monitor.start()
    await asyncio.sleep(0.01)
    yield told
    told.monitor.stop()


async def found(told: Told, plan: Plan) -> list[Stall | None]:
    """What was seen where stalls were planted: the last is charged as it must be, unless none was
    in all of TRIES. Skips where the machine was too busy for any that need a CPU."""
    plant = Plant(plan)
    LOOP.on_mark(plant.marked)
    stage = CAUSES.index(plan.stage)
    log = Path(plan.log)

    def made(trial: int) -> Planted | None:
        lines = log.read_text().splitlines()
        return Planted(*map(float, lines[trial].split())) if len(lines) > trial else None

    def enter() -> None:
        LOOP.mark(stage)
        LOOP.mark(OTHER)

    stalls: list[Stall | None] = []
    enter()  # makes ready
    for trial in range(MOST_TRIES):
        enter()
        until_s = time.monotonic() + 20
        while (one := made(trial)) is None:
            assert time.monotonic() < until_s
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.03)  # a beat
        stall = seen(one, told)
        if plan.kind not in ASLEEP and one.starved(stall.length_s if stall is not None else 0.0):
            continue
        stalls.append(stall)
        if charged(stalls) == plan.cause or len(stalls) == TRIES:
            break
    plant.close()
    if not stalls:
        pytest.skip("the machine gave this process no CPU")
    return stalls


def charged(stalls: list[Stall | None]) -> str | None:
    """The cause of the last."""
    return stalls[-1].cause if stalls[-1] is not None else None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sleep", "spin", "hold"])
async def test_a_stall_in_a_stage_is_charged_to_it(told: Told, kind: str, tmp_path: Path) -> None:
    for stage in STAGES:
        stalls = await found(told, Plan(stage, kind, LENGTH_S, 1, str(tmp_path / stage)))
        assert charged(stalls) == stage, stalls


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cause"), planted.CAUSE_OF.items())
async def test_what_comes_from_outside_a_stage(
    told: Told, kind: str, cause: str, tmp_path: Path
) -> None:
    length_s = LENGTH_S / 2 if kind == "collect" else LENGTH_S  # its heap takes long to make
    stalls = await found(told, Plan("parse", kind, length_s, 1, str(tmp_path / "log")))
    assert charged(stalls) == cause, stalls


@pytest.mark.slow
async def test_what_is_told_and_counted(told: Told, tmp_path: Path) -> None:
    plan = Plan("inspect", "sleep", LENGTH_S, 1, str(tmp_path / "log"))
    stall = (await found(told, plan))[-1]
    assert stall is not None
    assert stall.cause == "inspect"
    assert stall.length_s > LENGTH_S * 0.7
    assert any("test_planted.py" in frame for frame in stall.stack)
    assert stall.in_hand == IN_HAND[0]
    assert stall.in_hand_count == 1
    assert abs(stall.at_s - time.time()) < 60
    for name, expected in (
        (families.LOOP_STALLS, sum(one.cause == "inspect" for one in told)),
        (
            families.LOOP_STALL_CAUSES,
            sum(one.length_s for one in told if one.cause == "inspect"),
        ),
    ):
        child = told.segment.counter(name, "inspect")
        assert child._value == pytest.approx(expected)
    beats = told.monitor.sample()
    assert len(beats) // 4 >= 2
    assert told.segment.counter(families.STALL_MONITOR_CPU)._value > 0
    assert len(told.monitor.sample()) < len(beats)

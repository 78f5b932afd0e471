"""Rows of the ablation are compared where they are different gateways."""

import msgspec
import pytest

from bench.loads.generator import Latency
from bench.loads.phases import Phase
from bench.studies import ablation
from bench.studies.ablation import Load, frees
from bench.tools.command_line import Options
from bench.tools.watched import Late

CALM, HARD = Load(100, 0.1), Load(600, 1.0)


def phase(blocked: float, **rungs: float) -> Phase:
    late = Late(p50_ms=0.1, p99_ms=1.0, max_ms=2.0, blocked=blocked)
    return Phase({}, {}, late, rungs, cpu_s=1.0, wall_s=2.0, started_s=0.0, remarks=[])


def test_a_rung_is_judged_by_the_loads_it_takes_jobs_of() -> None:
    names = ["+ processes", "+ permit"]
    got = {
        ("+ processes", CALM): phase(0.01, threads=9),
        ("+ permit", CALM): phase(0.03, threads=9),  # the same gateway: noise of 2 %
        ("+ processes", HARD): phase(0.20, local=9),
        ("+ permit", HARD): phase(0.05, bail=9),
    }
    holds, noise = frees(names, (CALM, HARD), got)
    assert holds is True
    assert abs(noise - 0.02) < 1e-9
    got["+ permit", HARD] = phase(0.28, local=9)
    assert frees(names, (CALM, HARD), got)[0] is False
    assert frees(names, (CALM,), got) == (None, noise)
    got["+ processes", CALM] = phase(0.5, local=1)  # it had no permit, and ran to its end
    assert frees(names, (CALM,), got)[0] is True


def test_the_table_counts_all_that_was_not_answered_with_200() -> None:
    flows = {"plain": Latency(9, 0, 0, 1, 1, 1), "misses": Latency(9, 2, 3, 1, 1, 1)}
    one = msgspec.structs.replace(phase(0.0), flows=flows)
    line = dict(zip(ablation.HEADER, ablation.row("inline", CALM, one), strict=True))
    assert line["not answered with 200"] == 5


@pytest.mark.parametrize(("ladder_p99_ms", "holds"), [(200.0, False), (50.0, True)])
def test_the_ladder_is_compared_with_the_same_encoder(ladder_p99_ms: float, holds: bool) -> None:
    p99_ms = {"inline": 1_000.0, "+ permit": ladder_p99_ms, "as shipped": 1.0}
    blocked = {"inline": 0.9, "+ permit": 0.02, "as shipped": 0.5}
    got = {}
    for name, value in p99_ms.items():
        plain = Latency(100, 0, 0, 0.1, value, value)
        one = phase(blocked[name], local=9)
        got[name, HARD] = msgspec.structs.replace(one, flows={"plain": plain})
    options = Options(scale="smoke")
    made = ablation.finding(options, {}, [*p99_ms], (HARD,), got, 1.0)
    freed, sooner = made.shapes
    assert (freed.holds, sooner.holds) == (True, holds)
    assert "as shipped" not in freed.seen
    assert made.numbers["+ permit blocked"] == 0.02

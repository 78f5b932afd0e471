"""Rows of the ablation are compared where they are different gateways."""

from bench.loads.phases import Phase
from bench.studies.ablation import Load, frees
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

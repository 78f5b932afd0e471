"""Which stall is held to be a planted one."""

import pytest

from bench.experiments.stalls import CELLS, STARVED, UNSEEN, Planted, judge, planting, seen
from bench.tools.planted import KINDS, STAGES, VARIABLE, Plan
from tokenlane.telemetry.stalls.stall import Stall


def stall(began_s: float, length_s: float, cause: str) -> Stall:
    return Stall(worker=0, at_s=0.0, began_s=began_s, length_s=length_s, cause=cause)


def test_each_plant_gets_the_stall_it_overlaps_most() -> None:
    stalls = [
        stall(0.9, 0.11, "os"),
        stall(1.01, 0.01, "parse"),
        stall(2.0, 0.02, "gil"),
        stall(9.0, 0.5, "gc"),
    ]

    def found(began_s: float, ended_s: float) -> str:
        one = Planted(began_s, ended_s, cpu_s=0.0)
        return judge(one, seen(one, stalls), works=False)

    assert found(1.005, 1.02) == "parse"
    assert found(2.0, 2.02) == found(2.01, 2.03) == "gil"
    assert found(5.0, 5.02) == UNSEEN
    assert seen(Planted(2.0, 2.02, 0.0), []) is None


def test_work_that_got_no_cpu_is_the_machines_stall() -> None:
    starved, fed = Planted(2.0, 2.2, 0.02), Planted(2.0, 2.03, 0.02)
    assert judge(starved, stall(2.0, 0.2, "os"), works=True) == STARVED
    assert judge(starved, stall(2.0, 0.2, "gil"), works=True) == "gil"
    assert judge(fed, stall(2.0, 0.03, "os"), works=True) == "os"
    assert judge(fed, stall(2.0, 0.2, "os"), works=True) == STARVED
    assert judge(starved, stall(2.0, 0.2, "os"), works=False) == "os"


def test_every_stage_and_kind_has_its_cell() -> None:
    assert {stage for stage, _ in CELLS} == set(STAGES)
    assert {kind for _, kind in CELLS} == set(KINDS)
    assert len(CELLS) == 6 * 3 + 3


def test_the_gateways_of_a_cell_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.delenv(VARIABLE, raising=False)
    with planting("parse:spin:0.02:3:/tmp/log"):
        assert Plan.parse(os.environ[VARIABLE]).kind == "spin"
    assert VARIABLE not in os.environ

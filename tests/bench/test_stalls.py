"""Which stall is held to be a planted one."""

import pytest

from bench.stalls import CELLS, UNSEEN, Shown, judge, planting
from proxy.telemetry.planted import KINDS, STAGES, VARIABLE, Plan


def stall(began_s: float, length_s: float, cause: str) -> Shown:
    return Shown(0, began_s, length_s, cause)


def test_each_plant_gets_the_stall_it_overlaps_most() -> None:
    stalls = [
        stall(0.9, 0.11, "os"),
        stall(1.01, 0.01, "parse"),
        stall(2.0, 0.02, "gil"),
        stall(9.0, 0.5, "gc"),
    ]
    assert judge([(1.005, 1.02)], stalls) == {"parse": 1}
    assert judge([(2.0, 2.02), (2.01, 2.03), (5.0, 5.02)], stalls) == {"gil": 2, UNSEEN: 1}
    assert judge([(2.0, 2.02)], []) == {UNSEEN: 1}


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

"""The switches by themselves."""

import pytest

from tests.simulator.client import CHAT, TEXT
from tokenlane.simulator.faults import Fault, Faults


def test_counted_faults_are_used_up() -> None:
    faults = Faults()
    faults.set(Fault("hang", count=2), 0.0)
    hits = [faults.take(CHAT, 1.0) for _ in range(3)]
    assert [fault is not None for fault in hits] == [True, True, False]
    assert faults.listed(1.0) == []


def test_timed_faults_end() -> None:
    faults = Faults()
    faults.set(Fault("slow", for_s=5.0), 10.0)
    assert faults.active("slow", 14.9) is not None
    assert faults.active("slow", 15.0) is None


@pytest.mark.parametrize(
    ("paths", "hit", "missed"),
    [
        ((), [CHAT, TEXT, "/v1/embeddings"], ["/health", "/tokenize", "/v1/models"]),
        (("/health",), ["/health"], [CHAT]),
        (("*",), ["/health", CHAT], []),
    ],
)
def test_paths(paths: tuple[str, ...], hit: list[str], missed: list[str]) -> None:
    fault = Fault("status", paths=paths)
    assert all(fault.hits(path) for path in hit)
    assert not any(fault.hits(path) for path in missed)


def test_a_fault_replaces_one_of_its_kind_and_the_first_kind_wins() -> None:
    faults = Faults()
    faults.set(Fault("status", count=1), 0.0)
    faults.set(Fault("status", status=418), 0.0)
    faults.set(Fault("hang", count=1), 0.0)
    kinds = [fault.kind for _ in range(3) if (fault := faults.take(CHAT, 0.0)) is not None]
    assert kinds == ["hang", "status", "status"]
    faults.clear("status")
    assert faults.take(CHAT, 0.0) is None


def test_states_of_the_replica_are_not_taken_by_requests() -> None:
    faults = Faults()
    for kind in ("refuse", "slow", "drain", "unhealthy"):
        faults.set(Fault(kind), 0.0)
    assert faults.take(CHAT, 0.0) is None
    assert len(faults.listed(0.0)) == 4
    faults.clear()
    assert faults.listed(0.0) == []

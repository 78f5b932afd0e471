"""The switches by themselves."""

import pytest

from tests.simulator.client import CHAT, TEXT
from tokenlane.simulator.faults import Fault, Faults


def test_counted_faults_are_used_up() -> None:
    faults = Faults()
    faults.set(Fault("hang", count=2))
    hits = [faults.take(CHAT) for _ in range(3)]
    assert [fault is not None for fault in hits] == [True, True, False]
    assert faults.listed() == []


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
    faults.set(Fault("status", count=1))
    faults.set(Fault("status", status=418))
    faults.set(Fault("hang", count=1))
    kinds = [fault.kind for _ in range(3) if (fault := faults.take(CHAT)) is not None]
    assert kinds == ["hang", "status", "status"]
    faults.clear("status")
    assert faults.take(CHAT) is None


def test_states_of_the_replica_are_not_taken_by_requests() -> None:
    faults = Faults()
    for kind in ("refuse", "slow", "drain", "unhealthy"):
        faults.set(Fault(kind))
    assert faults.take(CHAT) is None
    assert len(faults.listed()) == 4
    faults.clear()
    assert faults.listed() == []

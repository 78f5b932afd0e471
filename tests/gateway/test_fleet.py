"""A worker's replicas: snapshots applied whole, pools that outlive them, models."""

from typing import Any

import pytest

from tokenlane.config.settings import UpstreamSettings
from tokenlane.errors import RequestError
from tokenlane.fleet_state import FleetState, ReplicaState
from tokenlane.gateway.fleet import Fleet


def replica(slot: int, **fields: Any) -> ReplicaState:
    common = {"id": str(slot), "url": f"http://127.0.0.1:{9000 + slot}", "models": ("m",)}
    return ReplicaState(slot=slot, **{**common, **fields})


def state(*replicas: ReplicaState) -> FleetState:
    return FleetState(1, replicas)


async def fleet_of(*replicas: ReplicaState) -> Fleet:
    made = Fleet(UpstreamSettings())
    made.update(state(*replicas))
    return made


async def test_a_replica_keeps_its_pool() -> None:
    fleet = await fleet_of(replica(0), replica(1))
    pools = fleet[0].pool, fleet[1].pool
    fleet.update(state(replica(1, up=True), replica(0, models=("m", "n"))))
    assert (fleet[0].pool, fleet[1].pool) == pools
    assert fleet[1].state.up
    assert fleet[0].label == b"0"
    # Another URL, another id or another slot is another replica.
    fleet.update(state(replica(0, url="http://127.0.0.1:1"), replica(1, id="x")))
    assert fleet[0].pool is not pools[0]
    assert fleet[1].pool is not pools[1]
    fleet.update(state(replica(1, id="x")))
    assert (0 in fleet, 1 in fleet) == (False, True)
    fleet.sweep()
    fleet.close()


@pytest.mark.parametrize(
    ("replicas", "serves"),
    [
        ([], False),
        ([replica(0)], False),
        ([replica(0, up=True)], True),
        ([replica(0, up=True, draining=True)], False),
        ([replica(0), replica(1, up=True)], True),
    ],
)
async def test_can_serve(replicas: list[ReplicaState], serves: bool) -> None:
    assert (await fleet_of(*replicas)).can_serve() is serves


@pytest.mark.parametrize(
    ("replicas", "asked", "resolved"),
    [
        ([replica(0)], "m", "m"),
        ([replica(0)], None, "m"),
        ([replica(0), replica(1, models=("n",))], "n", "n"),
        # Nobody has said yet what it serves: who knows?
        ([], "x", "x"),
        ([], None, None),
        ([replica(0, models=())], "x", "x"),
        ([replica(0), replica(1, models=())], "x", "x"),
    ],
)
async def test_resolve(
    replicas: list[ReplicaState], asked: str | None, resolved: str | None
) -> None:
    assert (await fleet_of(*replicas)).resolve(asked) == resolved


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [("x", 404, "model_not_found"), ("", 404, "model_not_found"), (None, 400, "missing_field")],
)
async def test_resolve_refuses(asked: str | None, status: int, code: str) -> None:
    fleet = await fleet_of(replica(0), replica(1, models=("n", "m")))
    assert fleet.models == ("m", "n")
    with pytest.raises(RequestError) as refused:
        fleet.resolve(asked)
    assert (refused.value.status, refused.value.code) == (status, code)
    assert refused.value.param == "model"
    assert "m, n" in refused.value.message


async def test_the_smallest_context_counts() -> None:
    fleet = await fleet_of(
        replica(0, max_model_tokens=10), replica(1, max_model_tokens=5, models=("n",)), replica(2)
    )
    assert fleet.max_model_tokens("m") == 10
    assert fleet.max_model_tokens(None) == 5
    assert fleet.max_model_tokens("other") is None

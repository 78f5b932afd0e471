"""A gateway among others: what comes and goes while the store is there, and while it is not."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.tools.store_server import StoreServer
from tests.stores import needs_store, store
from tokenlane.admission.places import Place
from tokenlane.channel.ends import SupervisorEnd
from tokenlane.channel.messages import Places, Portions
from tokenlane.config.loading import schema
from tokenlane.config.settings import AuthSettings, FleetSettings, Settings, Tenant
from tokenlane.control.fleet_table import FleetTable
from tokenlane.control.gateway_state import GatewayState
from tokenlane.control.peers.load_sharing import LoadSharing
from tokenlane.control.peers.store_client import DEADLINE_S
from tokenlane.control.worker_process import WorkerProcess
from tokenlane.telemetry.load_board import SharedBoard, create_board
from tokenlane.telemetry.metrics.exposition import Totals

__all__ = ["store"]


class End(SupervisorEnd):
    """A worker's channel that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.told: list[object] = []

    def send(self, message: object) -> None:
        self.told.append(message)


class BusyEnd(End):
    """Of a worker that has more requests than it ever may, each over at once."""

    shared: LoadSharing

    def send(self, message: object) -> None:
        super().send(message)
        if isinstance(message, Portions):
            self.wants(message.portions["t/requests"])

    def wants(self, portion: int) -> None:
        self.shared.told(0, Places({"t/requests": Place(portion, 0, 9)}))


@pytest.fixture
def board() -> Iterator[SharedBoard]:
    descriptor = create_board(4, 1, peers=True)
    yield SharedBoard(descriptor, None)
    os.close(descriptor)


def sharing(
    board: SharedBoard, fleet: FleetSettings, limit: int = 10
) -> tuple[LoadSharing, WorkerProcess]:
    tenants = {"t": Tenant(concurrency_limit_count=limit)}
    settings = Settings(backends=("http://a:1",), fleet=fleet, auth=AuthSettings(tenants=tenants))
    table = FleetTable(settings.backends, settings.control)
    state = GatewayState(settings, table, Totals(), board, {}, ("http://x:1", "http://x:2"))
    worker = WorkerProcess(0)
    worker.state, worker.end = "ready", End()
    state.workers = [worker]
    return LoadSharing(state, lambda _: False), worker


async def test_the_next_process_of_a_worker_gets_portions_of_its_own(board: SharedBoard) -> None:
    shared, worker = sharing(board, FleetSettings(store="redis://nobody:1"))
    first = worker.end
    assert isinstance(first, End)
    shared._own_places(1.0)
    shared.told(0, Places({"t/requests": Place(0, 0, 1)}))
    shared._own_places(2.0)
    second = worker.end = End()  # it died and was started again between two looks
    for now_s in (3.0, 4.0):
        shared._own_places(now_s)
        shared.told(0, Places({"t/requests": Place(0, 0, 1)}))
    shared._own_places(5.0)
    assert any(isinstance(one, Portions) for one in second.told)
    assert len(first.told) <= 1


async def test_without_a_password_to_read_workers_get_portions(
    board: SharedBoard, tmp_path: Path
) -> None:
    fleet = FleetSettings(store="redis://nobody:1", password_file=str(tmp_path / "missing"))
    shared, worker = sharing(board, fleet)
    end = worker.end
    assert isinstance(end, End)
    task = asyncio.get_running_loop().create_task(shared.run())
    async with asyncio.timeout(20):
        while not end.told:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert end.told == [Portions({"t/requests": 1})]


def test_the_slowest_exchange_is_shorter_than_any_lease() -> None:
    """Or a gateway that waited for a slow store would begin anew each time, and hear nobody."""
    fleet = schema()["$defs"]["FleetSettings"]["properties"]
    assert DEADLINE_S + fleet["share_interval_s"]["maximum"] < fleet["lease_s"]["minimum"]


@needs_store
@pytest.mark.slow
async def test_two_gateways_take_turns_with_one_place(
    board: SharedBoard, store: StoreServer
) -> None:
    ends, tasks = [], []
    for _ in range(2):
        shared, worker = sharing(board, FleetSettings(store=store.url), limit=1)
        end = worker.end = BusyEnd()
        end.shared = shared
        end.wants(0)
        ends.append(end)
        tasks.append(asyncio.get_running_loop().create_task(shared.run()))

    async with asyncio.timeout(30):
        # Each had it, gave it back and has it again.
        while min(end.told.count(Portions({"t/requests": 1})) for end in ends) < 3:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@needs_store
@pytest.mark.slow
async def test_who_was_held_for_long_begins_anew(
    board: SharedBoard, store: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "peers")
    fleet = FleetSettings(store=store.url, lease_s=0.6, share_interval_s=0.05)
    shared, _ = sharing(board, fleet)

    async def begun(times: int) -> None:
        async with asyncio.timeout(20):
            while caplog.text.count("shares load with other gateways") < times:  # noqa: ASYNC110 - a log tells nobody
                await asyncio.sleep(0.01)

    task = asyncio.get_running_loop().create_task(shared.run())
    await begun(1)
    time.sleep(2 * fleet.lease_s)  # noqa: ASYNC251 - the process is held
    await begun(2)
    assert "the store is gone" not in caplog.text
    task.cancel()
    await asyncio.wait([task])

"""The store is killed, restarted empty, replaced by one that never answers and by one that answers
errors, all under load: no request fails, one line says so, and the others are seen again within a
second of its return."""

from functools import partial

import pytest

from bench.tools.store_server import StoreServer
from tests.faults.gateways import Gateways, gateways, last_words, metric
from tests.stores import needs_store, scripted_store, store

pytestmark = [pytest.mark.slow, needs_store]
__all__ = ["store"]
BACK_S = 1.0
# Of asking three processes over and over, on a machine with other things to do.
ROOM_S = 1.0


async def gone(fleet: Gateways) -> None:
    """Everybody knows that the store is gone, counts nobody else, and serves on."""
    for gateway in fleet.gateways:
        await fleet.until(partial(fleet.alone, gateway))
        assert fleet.of_others(gateway) == 0
        assert metric(gateway, "tokenlane_fleet_store_up") == 0.0
    await fleet.more_answers()


async def back(fleet: Gateways) -> None:
    """Everybody is seen again, soon."""
    assert await fleet.all_seen(*fleet.gateways) < BACK_S + ROOM_S
    await fleet.more_answers()


@pytest.mark.row("O14")
async def test_a_store_in_all_its_troubles(store: StoreServer) -> None:
    with gateways(3, store.url) as fleet:
        async with fleet.load(*fleet.gateways):
            await fleet.all_seen(*fleet.gateways)
            store.kill()
            await gone(fleet)
            store.start()  # empty
            await back(fleet)
            store.kill()
            async with scripted_store(store.port, b""):
                await gone(fleet)
            store.start()
            await back(fleet)
            store.kill()
            async with scripted_store(store.port, b"-ERR out of order\r\n"):
                await gone(fleet)
            store.start()
            await back(fleet)
        assert fleet.failures == []
        for gateway in fleet.gateways:
            said = last_words(gateway)
            assert said.count("the store is gone") == 3
            assert said.count("Traceback") == 0


@pytest.mark.row("O14")
async def test_a_store_that_is_not_there_at_the_start(store: StoreServer) -> None:
    store.kill()
    with gateways(2, store.url) as fleet:
        async with fleet.load(*fleet.gateways):
            await gone(fleet)
            store.start()
            await back(fleet)
        assert fleet.failures == []

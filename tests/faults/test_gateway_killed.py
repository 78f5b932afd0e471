"""One of three gateways is killed under load: what it had in flight is gone from the others within
a second, and they lose no request. What it had counted for ever before: a dead worker's cells are
cleared by its supervisor, and a dead supervisor's by nobody."""

import time

import pytest

from bench.tools.store_server import StoreServer
from tests.faults.gateways import gateways, last_words
from tests.stores import needs_store, store

pytestmark = [pytest.mark.slow, needs_store]
__all__ = ["store"]


@pytest.mark.row("O13")
async def test_what_a_killed_gateway_had_is_gone_within_a_second(store: StoreServer) -> None:
    with gateways(3, store.url) as fleet:
        doomed, one, other = fleet.gateways
        await fleet.all_seen(*fleet.gateways)
        # Nothing else runs: what is counted is the doomed gateway's.
        endless = {"model": "demo", "prompt": "endless", "max_tokens": 4000}
        connections = [doomed.send("/v1/completions", endless) for _ in range(6)]
        await fleet.until(lambda: fleet.of_others(one) == 6 == fleet.of_others(other))
        async with fleet.load(one):
            await fleet.more_answers()
            doomed.process.kill()
            killed_s = time.monotonic()
            await fleet.until(lambda: len(fleet.peers(one)) == 1 == len(fleet.peers(other)))
            assert time.monotonic() - killed_s < 1.0 + 0.5  # asking may take a while
            await fleet.more_answers()
        await fleet.until(lambda: fleet.of_others(one) == 0 == fleet.of_others(other))
        assert fleet.failures == []
        for connection in connections:
            connection.close()
        assert "is gone" in last_words(one)


async def test_a_gateway_that_ends_is_gone_at_once(store: StoreServer) -> None:
    with gateways(2, store.url, "--fleet-lease-s", "1") as fleet:
        ends, stays = fleet.gateways
        await fleet.all_seen(*fleet.gateways)
        assert ends.stop() == 0
        took_s = await fleet.until(lambda: fleet.peers(stays) == [])
        assert took_s < 0.5  # it said farewell; its lease would last for longer

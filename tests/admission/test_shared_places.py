"""A tenant's places over three gateways: real processes, a real store, one replica that counts."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from bench.tools.store_server import StoreServer
from tests.control.test_supervisor import Gateway
from tests.faults.gateways import Gateways, gateways
from tests.stores import needs_store, store

pytestmark = [pytest.mark.slow, needs_store]
__all__ = ["store"]
LIMIT, KEY = 20, "a-tenants-key"
# Of the limit, as a fleet may be above or below it where demand changes.
ABOVE, BELOW = 1, 1


def config(folder: Path) -> str:
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    file = folder / "gateway.json"
    auth = {
        "keys": [{"digest": digest, "tenant": "acme"}],
        "tenants": {"acme": {"concurrency_limit_count": LIMIT}},
    }
    file.write_text(json.dumps({"auth": auth, "admission": {"queue_deadline_s": 60}}))
    return str(file)


class Scene:
    """The gateways, and what the replica has in flight. most: the most that was seen."""

    def __init__(self, fleet: Gateways, session: aiohttp.ClientSession) -> None:
        self.fleet = fleet
        self.session = session
        self.now = 0
        self.most = 0

    async def watch(self) -> None:
        while True:
            async with self.session.get(f"{self.fleet.replicas[0]}/metrics") as response:
                lines = (await response.text()).splitlines()
            kinds = ("vllm:num_requests_running", "vllm:num_requests_waiting{")
            counts = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(kinds)]
            self.now = int(sum(map(float, counts)))
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.02)

    async def until_about(self, count: int) -> None:
        await self.fleet.until(lambda: count - BELOW <= self.now <= count)

    @contextlib.asynccontextmanager
    async def demand(self, gateway: Gateway, count: int) -> AsyncIterator[None]:
        """So many clients of a gateway that ask all the time."""
        tasks = [asyncio.get_running_loop().create_task(self._ask(gateway)) for _ in range(count)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _ask(self, gateway: Gateway) -> None:
        url = f"http://127.0.0.1:{gateway.port}/v1/completions"
        body = {"model": "demo", "prompt": "hello", "max_tokens": 8}
        headers = {"authorization": f"Bearer {KEY}"}
        while True:
            async with self.session.post(url, json=body, headers=headers) as response:
                if response.status != 200:
                    self.fleet.failures.append(await response.text())


@contextlib.asynccontextmanager
async def scene(fleet: Gateways) -> AsyncIterator[Scene]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        made = Scene(fleet, session)
        watching = asyncio.get_running_loop().create_task(made.watch())
        try:
            yield made
        finally:
            watching.cancel()


@pytest.mark.row("O15")
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_tenant_has_its_places_once_wherever_it_asks(
    store: StoreServer, tmp_path: Path, workers: str
) -> None:
    flags = ("--config", config(tmp_path), "--workers", workers)
    with gateways(3, store.url, *flags, replicas=1, more=("--running-limit", "99")) as fleet:
        await fleet.all_seen(*fleet.gateways)
        async with scene(fleet) as at:
            one, two, three = fleet.gateways
            async with at.demand(one, 2 * LIMIT):
                await at.until_about(LIMIT)
                async with at.demand(two, LIMIT), at.demand(three, LIMIT):
                    await at.until_about(LIMIT)
                await at.until_about(LIMIT)
                store.kill()
                await fleet.until(lambda: fleet.alone(one) and fleet.alone(three))
                async with at.demand(three, LIMIT):
                    await at.until_about(LIMIT)
                store.start()  # empty
                await fleet.all_seen(*fleet.gateways)
            async with at.demand(three, LIMIT):
                await at.until_about(LIMIT)
            assert at.most <= LIMIT + ABOVE
        assert fleet.failures == []

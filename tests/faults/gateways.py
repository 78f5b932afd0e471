"""Several gateways in front of one simulated fleet, and load on them. Real processes.

Invariants:
- Every answer is read to its end: one that is not whole, or no 200, is a failure and is kept.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp

from tests.control.test_supervisor import PATIENCE_S, Gateway
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess

CLIENTS = 4


class Gateways:
    """The gateways, and what their clients got."""

    def __init__(self, gateways: list[Gateway], replicas: tuple[str, ...]) -> None:
        self.gateways = gateways
        self.replicas = replicas
        self.answers = 0
        self.failures: list[str] = []

    def peers(self, at: Gateway) -> list[dict[str, Any]]:
        """The others that one of them sees."""
        rows: list[dict[str, Any]] = at.status()["fleet"]["peers"]
        return rows

    def alone(self, at: Gateway) -> bool:
        """Whether one of them knows that the store is gone, and sees nobody."""
        fleet = at.status()["fleet"]
        return fleet["store"].startswith("down: ") and not fleet["peers"]

    def of_others(self, at: Gateway) -> int:
        """The requests that one of them counts as the others'."""
        return sum(row["peers_in_flight_requests"] for row in at.status()["replicas"])

    async def until(self, true: Callable[[], bool]) -> float:
        """Wait until something is so; return how long it took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not await asyncio.to_thread(true):
            assert loop.time() - began_s < PATIENCE_S
            await asyncio.sleep(0.01)
        return loop.time() - began_s

    async def all_seen(self, *at: Gateway) -> float:
        """Wait until each of these sees all of these, and the store."""
        others = len(at) - 1
        return await self.until(lambda: all(len(self.peers(one)) == others for one in at))

    async def _ask_on(self, gateway: Gateway, number: int) -> None:
        url = f"http://127.0.0.1:{gateway.port}/v1/completions"
        async with aiohttp.ClientSession() as session:
            while True:
                prompt = f"Say something about {number} and {self.answers}"
                body = {"model": "demo", "prompt": prompt, "stream": True, "max_tokens": 8}
                try:
                    async with session.post(url, json=body) as response:
                        text = await response.text()
                    if response.status == 200 and text.endswith("data: [DONE]\n\n"):
                        self.answers += 1
                    else:
                        self.failures.append(f"{response.status} {text[-80:]}")
                except aiohttp.ClientError as error:
                    self.failures.append(repr(error))

    @contextlib.asynccontextmanager
    async def load(self, *at: Gateway) -> AsyncIterator[None]:
        """Clients ask these until the context ends."""
        tasks = [
            asyncio.get_running_loop().create_task(self._ask_on(gateway, number))
            for gateway in at
            for number in range(CLIENTS)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def more_answers(self, count: int = 30) -> None:
        """Wait until so many more requests were answered."""
        wanted = self.answers + count
        await self.until(lambda: self.answers >= wanted)


@contextlib.contextmanager
def gateways(
    count: int, store: str, *flags: str, replicas: int = 4, more: tuple[str, ...] = ()
) -> Iterator[Gateways]:
    """So many gateways that share their load, in front of simulated replicas. more: flags of
    these."""
    pace = ("--token-interval-s", "0.02", *more)
    with (
        FleetProcess(replicas, free_ports(replicas), pace) as fleet,
        contextlib.ExitStack() as stack,
    ):
        argv = ("serve", "--backend", *fleet.urls, "--fleet-store", store, *flags)
        quiet = ("--log-access", "off", "--tokens-discover", "false")
        made = [stack.enter_context(Gateway(*argv, *quiet)) for _ in range(count)]
        yield Gateways(made, fleet.urls)


def metric(gateway: Gateway, name: str) -> float:
    """A sample without labels, as scraped."""
    page = gateway.ask("/metrics", admin=True)[1].decode()
    return float(next(line for line in page.splitlines() if line.startswith(f"{name} ")).split()[1])


def last_words(gateway: Gateway) -> str:
    """Ask a gateway to end; return its log."""
    gateway.process.terminate()
    assert gateway.process.stderr is not None
    return gateway.process.stderr.read()

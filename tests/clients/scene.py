"""A gateway in front of simulated replicas, for clients to talk to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI

from tests.support import Bench, demo_tokenizer, gateway
from tokenlane.config.settings import ServerSettings, Settings
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet


@asynccontextmanager
async def client_of(bench: Bench, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    options = {"max_retries": 0, "timeout": 20.0, **options}
    url = f"http://127.0.0.1:{bench.port}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none", **options) as client:
        yield client


@asynccontextmanager
async def serving(
    count: int = 2, server: ServerSettings | None = None, *, keeping: bool = False
) -> AsyncIterator[tuple[Bench, SimulatedFleet]]:
    """The gateway and its replicas. keeping: the client keeps its connections."""
    settings = Settings(server=server or ServerSettings())
    async with SimulatedFleet(SimulatorSettings(store_responses=True), demo_tokenizer()) as fleet:
        urls = await fleet.start(count)
        async with gateway(*urls, tokenizer=demo_tokenizer(), settings=settings) as bench:
            yield bench, fleet
            for connection in list(bench.server.connections) if keeping else ():
                connection.abort_answer(reset=True)


@asynccontextmanager
async def simulated(
    count: int = 2, **options: Any
) -> AsyncIterator[tuple[AsyncOpenAI, Bench, SimulatedFleet]]:
    """A client of a gateway in front of simulated replicas."""
    async with serving(count) as (bench, fleet), client_of(bench, **options) as client:
        yield client, bench, fleet

"""A fleet per test: real sockets, instant unless a test says otherwise."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet, load_tokenizer
from tokenlane.tokens.tokenizer import Tokenizer

FleetMaker = Callable[..., Awaitable[SimulatedFleet]]


@pytest.fixture(scope="session")
def demo_tokenizer() -> Tokenizer:
    """The demo model's, loaded once."""
    return load_tokenizer(SimulatorSettings())


@pytest.fixture
async def make_fleet(demo_tokenizer: Tokenizer) -> AsyncIterator[FleetMaker]:
    """Fleets with the given settings; `count` replicas each."""
    async with AsyncExitStack() as stack:

        async def make(count: int = 1, **fields: Any) -> SimulatedFleet:
            fleet = await stack.enter_async_context(
                SimulatedFleet(SimulatorSettings(**fields), demo_tokenizer)
            )
            await fleet.start(count)
            return fleet

        yield make


@pytest.fixture
async def url(make_fleet: FleetMaker) -> str:
    """An instant replica."""
    return (await make_fleet()).replicas[0].url

"""The load generator, the baseline proxy and the stream source, against each other on sockets."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import pytest

from bench.loads.openloop import Flow, Plan, run
from bench.tools import aiohttp_proxy, stream_source
from bench.tools.processes import free_ports

EVENTS = 5


@asynccontextmanager
async def serving(server: Coroutine[None, None, None], port: int) -> AsyncIterator[None]:
    """Runs a server that never ends, once it accepts, for the length of the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server)
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.001)
            else:
                writer.close()
                await writer.wait_closed()
                break
        yield
        task.cancel()


@pytest.mark.parametrize("through_proxy", [False, True])
async def test_each_stream_arrives_whole(through_proxy: bool) -> None:
    source, proxy = free_ports(2)
    flow = Flow(
        "streams",
        proxy if through_proxy else source,
        "/v1/chat/completions",
        [0.0, 0.0, 0.005],
        "stream",
        warm_connections=1,
        size=300,
    )
    async with (
        serving(stream_source.serve([source], EVENTS, 0.002), source),
        serving(aiohttp_proxy.serve(proxy, [f"http://127.0.0.1:{source}"]), proxy),
    ):
        result = await run(Plan([flow], linger_s=2.0))
    calls = result.calls["streams"]
    assert [(call.status, call.events, call.whole) for call in calls] == [
        (200, EVENTS + 1, True)
    ] * 3
    assert all(call.due_s <= call.fired_s <= call.first_byte_s <= call.done_s for call in calls)


async def test_a_port_that_refuses_is_a_call_without_an_answer() -> None:
    (port,) = free_ports(1)
    result = await run(Plan([Flow("x", port, "/", [0.0], "none", warm_connections=0)], 0.1))
    assert [(call.status, call.whole) for call in result.calls["x"]] == [(0, False)]

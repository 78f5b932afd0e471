"""A drain whose deadline is over: what is cut says so, and so does the exit status.

Streams just ended, as if the network had failed, and the gateway exited as if all were well.
"""

import json
import signal

import pytest

from tests.control.test_supervisor import Gateway
from tests.faults.test_cut_dialects import ASKED
from tests.raw import (
    CHAT,
    ROLE,
    STREAM_HEAD,
    TOKEN,
    Peer,
    Upstream,
    chat,
    chunk,
    json_bytes,
    post,
    until,
)
from tests.relay.named_streams import STREAMS
from tests.support import gateway
from tokenlane.config.settings import ServerSettings, Settings
from tokenlane.protocols.dialects import Dialect, dialect_of
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.telemetry.metrics import families

SETTINGS = Settings(server=ServerSettings(drain_linger_s=0.0))


def begun(path: str) -> tuple[bytes, ...]:
    """The first events of a stream, the first token among them."""
    dialect = dialect_of(path)
    return (ROLE, TOKEN) if dialect is Dialect.CHAT else tuple(STREAMS[dialect][:4])


@pytest.mark.row("O7")
@pytest.mark.parametrize("path", [CHAT, *ASKED])
async def test_a_stream_that_is_cut_ends_with_an_error_event(path: str) -> None:
    events = begun(path)

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(STREAM_HEAD + b"".join(map(chunk, events)))
        await peer.gone()

    async with Upstream(script) as upstream, gateway(upstream.url, settings=SETTINGS) as bench:
        client = await bench.client()
        idle = await bench.client()
        await client.send(ASKED.get(path) or post(path, chat(stream=True)))
        await client.through(chunk(events[-1]))
        assert await bench.server.drain(0.02) == 1
        rest = await client.rest()
        assert await idle.rest() == b""
        [size, event] = rest.split(b"\r\n", 1)
        assert len(event) == int(size, 16) + 2, "one chunk, and not the last"
        name, _, data = event.strip().rpartition(b"data: ")
        assert name == (b"" if path == CHAT else b"event: error\n")
        assert b"The gateway stopped" in json.dumps(json.loads(data)).encode()
        # Its replica is freed, and not blamed.
        await until(lambda: not upstream.scripts and bench.outcomes())
        assert bench.outcomes() == {("200", "gateway_error"): 1}
        assert bench.metric(families.UPSTREAM_FAILURES) == 0


@pytest.mark.row("O7")
@pytest.mark.parametrize("body_left", [0, 1], ids=["at-the-replica", "body-incomplete"])
async def test_a_request_without_an_answer_gets_a_503(body_left: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.gone()

    request = post(CHAT, chat())
    async with Upstream(script) as upstream, gateway(upstream.url, settings=SETTINGS) as bench:
        client = await bench.client()
        await client.send(request[: len(request) - body_left])
        await until(lambda: upstream.asked or (body_left and bench.gateway.in_hand))
        assert await bench.server.drain(0.02) == 1
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (503, "gateway_stopped")
        assert answer.headers["connection"] == "close"
        await until(lambda: not upstream.scripts and bench.outcomes())
        assert bench.outcomes() == {("503", "gateway_error"): 1}
        assert bench.metric(families.UPSTREAM_FAILURES) == 0


@pytest.mark.row("O7")
async def test_in_the_middle_of_an_event_it_breaks_off() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(STREAM_HEAD + chunk(ROLE) + chunk(TOKEN) + chunk(TOKEN[:20]))
        await peer.gone()

    async with Upstream(script) as upstream, gateway(upstream.url, settings=SETTINGS) as bench:
        client = await bench.client()
        await client.send(post(CHAT, chat(stream=True)))
        await client.through(chunk(TOKEN[:20]))
        assert await bench.server.drain(0.02) == 1
        assert await client.rest() == b""


@pytest.mark.row("O7")
@pytest.mark.slow
def test_the_exit_status_tells_that_answers_were_cut() -> None:
    with (
        FleetProcess(1, free_ports(1), ("--token-interval-s", "0.5")) as fleet,
        Gateway("serve", "--backend", *fleet.urls, "--server-drain-deadline-s", "0.2") as gate,
    ):
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": "demo", "messages": messages, "stream": True, "max_tokens": 500}
        connection = gate.send(CHAT, json.loads(json_bytes(body)))
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        assert gate.stop(signal.SIGTERM) == 1
        connection.close()

"""More clients connect than the gateway can serve. They waited in the kernel's queue until it was
full, for seconds, and were lost there: health checks with them, and no metric told."""

import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator

import pytest

from tests.raw import CHAT, Peer, Upstream, Wire, chat, get, ok, post, until
from tests.support import Bench, gateway
from tokenlane.config.settings import ServerSettings, Settings
from tokenlane.runtime import accept_queue
from tokenlane.telemetry.metrics import families

CLOSE = "connection: close\r\n"
ASKED = post(CHAT, chat(), CLOSE)
HEALTH = get("/health", CLOSE)
WORK_S = 0.001


def work() -> None:
    """Hold the loop for a while, by the CPU's clock."""
    until_s = time.thread_time() + WORK_S
    while time.thread_time() < until_s:
        pass


class Crowd:
    """Clients that come when they are told to, each with a connection of its own."""

    def __init__(self) -> None:
        self.wires: list[tuple[bytes, Wire]] = []
        self.port = 0
        self.to_come = 0

    def come(self, request: bytes) -> None:
        """One more. Its request is in the kernel's hands when this returns."""
        sock = socket.socket()
        sock.settimeout(0.0)
        with contextlib.suppress(BlockingIOError):
            sock.connect(("127.0.0.1", self.port))
        with contextlib.suppress(OSError):  # the kernel has no room for it
            sock.send(request)
        self.wires.append((request, Wire(sock)))

    async def answers(self) -> list[tuple[bytes, bytes]]:
        """Each request with its answer, whole; no answer fails the test."""
        got = []
        for request, wire in self.wires:
            answer = await wire.through(b"\r\n\r\n")
            answer += await wire.rest()
            wire.close()
            got.append((request, answer))
        return got


def status(answer: bytes) -> int:
    return int(answer[9:12])


def dropped(bench: Bench) -> int:
    listener = bench.server.acceptor._listener
    assert listener is not None
    return accept_queue.look(listener).dropped


@contextlib.asynccontextmanager
async def overloaded(
    crowd: Crowd, settings: Settings, factor: int, count: int
) -> AsyncIterator[Bench]:
    """A gateway whose replica holds the loop for each request while `factor` more clients come, up
    to `count`."""

    async def script(peer: Peer) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                await peer.asked()
                work()
                for _ in range(factor):
                    if crowd.to_come:
                        crowd.to_come -= 1
                        crowd.come(HEALTH if crowd.to_come % 20 == 0 else ASKED)
                await peer.send(ok())

    async with Upstream(script) as upstream, gateway(upstream.url, settings=settings) as bench:
        crowd.port, crowd.to_come = bench.port, count
        yield bench


@pytest.mark.row("O1")
@pytest.mark.slow
async def test_who_is_too_many_is_told_soon_and_health_is_answered() -> None:
    crowd = Crowd()
    async with overloaded(crowd, Settings(), factor=3, count=800) as bench:
        crowd.come(ASKED)
        answers = await crowd.answers()
        assert dropped(bench) == 0
        refused = [answer for _, answer in answers if status(answer) == 503]
        served = [answer for _, answer in answers if status(answer) == 200]
        assert len(refused) + len(served) == len(answers) == 801
        assert len(refused) > 50
        assert all(status(answer) == 200 for asked, answer in answers if asked is HEALTH)
        head, _, body = refused[0].partition(b"\r\n\r\n")
        assert json.loads(body)["error"]["code"] == "too_many_clients"
        for line in (b"retry-after: 1", b"connection: close", b"x-request-id: "):
            assert line in head
        assert bench.metric(families.SHED, "other", "accept-queue") == len(refused)
        assert bench.outcomes()["503", "gateway_error"] == len(refused)
        # It is over: who comes now is served.
        crowd.wires.clear()
        crowd.come(ASKED)
        assert [status(answer) for _, answer in await crowd.answers()] == [200]


@pytest.mark.slow
@pytest.mark.parametrize("limit_s", [0.05, 0.0])
async def test_a_crowd_that_comes_at_once_is_served(limit_s: float) -> None:
    """As clients of a closed loop do: it is long until the last is accepted, and no overload."""
    crowd = Crowd()
    settings = Settings(server=ServerSettings(accept_wait_limit_s=limit_s))
    async with overloaded(crowd, settings, factor=0, count=0) as bench:
        for _ in range(150):
            crowd.come(ASKED)
        answers = await crowd.answers()
        assert {status(answer) for _, answer in answers} == {200}
        assert bench.metric(families.SHED, "other", "accept-queue") == 0


async def test_a_full_queue_with_the_limit_off_waits_on() -> None:
    crowd = Crowd()
    settings = Settings(server=ServerSettings(accept_wait_limit_s=0.0))
    async with overloaded(crowd, settings, factor=3, count=100) as bench:
        crowd.come(ASKED)
        await until(lambda: not crowd.to_come)
        assert {status(answer) for _, answer in await crowd.answers()} == {200}
        assert bench.metric(families.SHED, "other", "accept-queue") == 0

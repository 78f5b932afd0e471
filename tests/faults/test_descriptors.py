"""A worker out of file descriptors: it neither spins nor floods its log, and serves on later.
Clients never take those that their replicas need, and no replica is blamed for the lack."""

import asyncio
import contextlib
import errno
import gc
import resource
import socket
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.control.test_supervisor import Gateway, until
from tests.http.handlers import TEXT
from tests.raw import CHAT, Upstream, answering, chat, get, ok, post
from tests.raw import until as until_async
from tests.support import demo_tokenizer, gateway, serving
from tokenlane.config.settings import ServerSettings
from tokenlane.http.server import Exchange
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.telemetry.metrics import families

# Of a CPU. A worker that has nothing to do takes 1 % (heartbeats, gauges, a look at the listener),
# 6 % on a slow machine; one that spins takes all that it can get.
SPIN_RATIO = 0.2
COUNTED_S = 2.0


def _answers(sock: socket.socket) -> bool:
    sock.settimeout(0.3)
    with contextlib.suppress(OSError):
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        return sock.recv(12) == b"HTTP/1.1 200"
    return False


def cpu_share(process: psutil.Process) -> float:
    """What the process takes of a CPU, counted for a while: what a busy machine makes longer is
    divided by more."""
    before, began_s = process.cpu_times(), time.monotonic()
    time.sleep(COUNTED_S)
    after, ended_s = process.cpu_times(), time.monotonic()
    return (after.user - before.user + after.system - before.system) / (ended_s - began_s)


@pytest.mark.row("O4")
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_none_left_and_back() -> None:
    with (
        FleetProcess(1, free_ports(1)) as fleet,
        Gateway("serve", "--backend", *fleet.urls) as gate,
    ):
        assert gate.chat() == 200
        [worker] = gate.status()["workers"]
        process = psutil.Process(worker["pid"])
        limit = process.num_fds() + 20
        resource.prlimit(worker["pid"], resource.RLIMIT_NOFILE, (limit, limit))
        with contextlib.ExitStack() as stack:
            crowd = [
                stack.enter_context(socket.create_connection(("127.0.0.1", gate.port)))
                for _ in range(60)
            ]
            served = sum(map(_answers, crowd))
            assert 0 < served < 60
            share = cpu_share(process)
            assert share < SPIN_RATIO, f"it spins: {share:.0%} of a CPU"
        until(lambda: process.num_fds() < limit - 10)
        until(lambda: gate.chat() == 200)
        assert gate.status()["workers"][0]["restarts"] == 0
        assert gate.stop() == 0
        assert gate.process.stderr is not None
        assert len(gate.process.stderr.read().splitlines()) < 100


@contextlib.contextmanager
def open_files(limit: int) -> Iterator[None]:
    """Processes that are started in the context, and this one, may have so many."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.row("O4")
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_more_clients_than_descriptors_are_all_served() -> None:
    """One was, and the replica was left out for a while: its connections could not be opened."""
    body = chat()
    request = post(CHAT, body, "content-type: application/json\r\n")
    with FleetProcess(1, free_ports(1)) as fleet, contextlib.ExitStack() as stack:
        # A gateway takes what it may have, so this is the hard limit.
        prefix = ("prlimit", "--nofile=128:128")
        gate = stack.enter_context(Gateway("serve", "--backend", *fleet.urls, prefix=prefix))
        crowd = [
            stack.enter_context(socket.create_connection(("127.0.0.1", gate.port)))
            for _ in range(200)
        ]
        for sock in crowd:
            sock.sendall(request)
        for sock in crowd:
            sock.settimeout(60)
            assert sock.recv(12) == b"HTTP/1.1 200"
        page = gate.ask("/metrics", admin=True)[1].decode()
        assert "tokenlane_upstream_failures_total{" not in page
        assert gate.stop() == 0


@pytest.mark.slow
def test_every_process_takes_what_it_may_have() -> None:
    prefix = ("prlimit", "--nofile=256:4096")
    with (
        FleetProcess(1, free_ports(1)) as fleet,
        Gateway("serve", "--backend", *fleet.urls, prefix=prefix) as gate,
    ):
        for pid in (gate.process.pid, gate.status()["workers"][0]["pid"]):
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (4096, 4096)


@pytest.mark.slow
async def test_idle_clients_make_room_for_those_that_wait() -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.respond(200, TEXT, b"done")

    settings = ServerSettings(drain_linger_s=0.5)
    async with serving(handler, settings) as served:
        served.server._limit_count = 8
        idle = [await served.client() for _ in range(7)]
        for client in idle:
            assert "connection" not in (await client.ask(get("/"), "GET")).headers
        crowd = []
        for _ in range(40):
            crowd.append(await served.client())
            await crowd[-1].send(get("/"))
        for client in crowd:
            assert (await client.answer("GET")).body == b"done"
        for client in idle:
            await client.gone()
        for client in crowd:
            client.close()
        await until_async(lambda: served.server.acceptor.open and not served.server.connections)
        last = await served.client()
        assert "connection" not in (await last.ask(get("/"), "GET")).headers


async def test_who_waits_at_a_full_server_is_served_in_a_drain() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        entered.set()
        await go_on.wait()
        exchange.respond(200, TEXT, b"done")

    async with serving(handler) as served:
        served.server._limit_count = 1
        clients = [await served.client() for _ in range(3)]
        for client in clients:
            await client.send(get("/"))
        await until_async(lambda: not served.server.acceptor.open)
        draining = asyncio.get_running_loop().create_task(served.server.drain(10.0))
        await entered.wait()
        go_on.set()
        for client in clients:
            assert (await client.answer("GET")).body == b"done"
        assert await draining == 0


async def test_no_replica_is_blamed_for_the_lack() -> None:
    async with Upstream(answering(ok())) as upstream, gateway(upstream.url) as bench:
        clients = [await bench.client() for _ in range(8)]
        for client in clients:
            assert (await client.ask(get("/health"), "GET")).status == 200
        with no_descriptors():
            answers = [await client.ask(post(CHAT, chat())) for client in clients]
        for answer in answers:
            assert (answer.status, answer.error["code"]) == (503, "out_of_descriptors")
            assert answer.headers["retry-after"] == "1"
        assert (await clients[0].ask(post(CHAT, chat()))).status == 200
        assert bench.outcomes() == {("503", "gateway_error"): 8, ("200", "ok"): 9}
        assert bench.metric(families.UPSTREAM_FAILURES) == 0


@pytest.mark.row("O4")
@pytest.mark.parametrize(
    ("failure", "failures"),
    [
        (OSError(errno.EADDRNOTAVAIL, "no local port"), 0),
        (socket.gaierror(socket.EAI_AGAIN, "no answer of the resolver"), 1),
    ],
    ids=str,
)
async def test_nothing_is_forgotten_of_a_replica_that_cannot_be_looked_for(
    failure: OSError, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise failure

    asked = post(CHAT, chat("word " * 400))
    once = answering(ok(b"{}", "connection: close\r\n"))
    async with (
        Upstream(once) as upstream,
        gateway(upstream.url, tokenizer=demo_tokenizer()) as bench,
    ):
        await bench.ask(asked)
        before = (await bench.ask(asked)).headers
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "create_connection", fails)
            assert (await bench.ask(asked)).status == 503
        after = (await bench.ask(asked)).headers
        assert int(before["x-tokenlane-cached-tokens"]) > 0
        for name in ("x-tokenlane-cached-tokens", "x-tokenlane-forwarded"):
            assert after[name] == before[name]
        assert bench.metric(families.UPSTREAM_FAILURES) == failures


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing more, once what other tests left is collected."""
    gc.collect()
    with contextlib.ExitStack() as stack:
        highest = socket.socket()
        number = highest.fileno()
        highest.close()
        with open_files(number):
            with pytest.raises(OSError, match="Too many open files") as refused:
                stack.enter_context(socket.socket())
            assert refused.value.errno == errno.EMFILE
            yield

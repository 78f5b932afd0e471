"""Probes over real sockets: a good replica, and each way to be a bad one."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.faults.test_descriptors import no_descriptors
from tests.raw import Upstream, answering, ok
from tokenlane.config.settings import ControlSettings
from tokenlane.control import probes
from tokenlane.control.dashboard.verdict import WHY
from tokenlane.control.fleet_table import ADVICE, Probe
from tokenlane.control.probes import (
    BODY_LIMIT_BYTES,
    MODELS_LIMIT_BYTES,
    Prober,
    open_session,
    probe,
    tokenizes,
)
from tokenlane.control.replica_metrics import Scrape

SETTINGS = ControlSettings(probe_deadline_s=10.0, probe_interval_s=0.2)
HASTY = ControlSettings(probe_deadline_s=0.3)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[..., Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a small replica: `await serve(health=..., models=..., metrics=...)` -> base URL."""
    runners = []

    async def start(**handlers: Handler) -> str:
        app = web.Application()
        paths = {"health": "/health", "models": "/v1/models", "metrics": "/metrics"}
        for name, handler in handlers.items():
            app.router.add_get(paths.get(name, f"/{name}"), handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        runners.append(runner)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(runner, listener).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


def says(status: int = 200, text: str = "", **headers: str) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, headers=headers)

    return handler


async def look(url: str, settings: ControlSettings = SETTINGS) -> Probe:
    async with open_session(settings) as session:
        return await probe(session, url)


MODELS = '{"object":"list","data":[{"id":"m","max_model_len":4096},{"id":"lora"}]}'
METRICS = 'vllm:num_requests_running{engine="0"} 3\nprocess_start_time_seconds 12\n'


async def test_a_good_replica(serve: Serve) -> None:
    url = await serve(health=says(), models=says(text=MODELS), metrics=says(text=METRICS))
    found = await look(url)
    assert found.scrape is not None
    scrape = Scrape(running=3, started_s=12.0, at_s=found.scrape.at_s)
    assert found == Probe("ok", ("m", "lora"), 4096, scrape)


MANY = ",".join(['{"id":"m"}'] * 4097)
LONG = "m" * 1025
HUGE = "9" * 400
NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "models",
    [
        "",
        "[]",
        '{"data":{}}',
        '{"data":[{"name":"m"}]}',
        "\ud7ff{",
        f'{{"data":[{MANY}]}}',
        f'{{"data":[{{"id":"{LONG}"}}]}}',
        f'{{"data":[{{"id":"m","max_model_len":{HUGE}}}]}}',
        f'{{"data":[],"more":{NESTED}}}',
    ],
    ids=range(9),
)
async def test_unreadable_models_are_unknown_models(serve: Serve, models: str) -> None:
    url = await serve(health=says(), models=says(text=models), metrics=says(status=404))
    assert await look(url) == Probe("ok")


async def test_a_context_below_nothing_is_none(serve: Serve) -> None:
    # No message to the workers could carry the second one.
    models = (
        '{"data":[{"id":"m","max_model_len":-1},{"id":"n","max_model_len":-9223372036854775809}]}'
    )
    assert await look(await serve(health=says(), models=says(text=models))) == Probe(
        "ok", ("m", "n")
    )


async def test_the_version_is_asked_for_where_no_start_is_told(serve: Serve) -> None:
    version = says(text='{"version":"1.2.3"}')
    assert (await look(await serve(health=says(), version=version))).version == "1.2.3"
    told = await look(await serve(health=says(), version=version, metrics=says(text=METRICS)))
    assert told.version == ""


async def test_an_unreadable_version_is_an_unknown_one(serve: Serve) -> None:
    url = await serve(health=says(), version=says(text=f'{{"more":{NESTED}}}'))
    assert await look(url) == Probe("ok")


async def test_only_health_is_enough(serve: Serve) -> None:
    assert await look(await serve(health=says())) == Probe("ok")


@pytest.mark.parametrize("status", [204, 404, 500, 503])
async def test_an_unhealthy_status(serve: Serve, status: int) -> None:
    seen = await look(await serve(health=says(status=status)))
    assert seen == Probe("status", status=status)
    assert seen.told(ADVICE).startswith(f"its /health answers {status}; is it vLLM?")
    assert seen.told(WHY) == f"its /health answers {status}"


@pytest.mark.row("S6")
async def test_redirects_are_not_followed(serve: Serve) -> None:
    other = await serve(health=says())
    moved = await serve(health=says(status=302, Location=f"{other}/health"))
    assert await look(moved) == Probe("status", status=302)


async def test_a_hanging_replica(serve: Serve) -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    assert await look(await serve(health=hang), HASTY) == Probe("timeout")


async def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert await look(f"http://127.0.0.1:{port}") == Probe("refused")


async def test_what_is_not_there_to_be_asked(serve: Serve) -> None:
    assert await look("http://no.such.host.invalid:8000") == Probe("unreachable")
    plain = await serve(health=says())
    assert await look(plain.replace("http:", "https:")) == Probe("tls")


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-hello\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", b""]
)
async def test_something_that_is_no_replica(answer: bytes) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        assert await look(f"http://{host}:{port}") == Probe("protocol")


async def test_an_endless_page_is_cut_off(serve: Serve) -> None:
    endless = says(text="x" * (BODY_LIMIT_BYTES + 1))
    assert (await look(await serve(health=says(), metrics=endless))).scrape is None
    assert await look(await serve(health=endless)) == Probe("protocol")
    models = says(text='{"data":[]}' + " " * MODELS_LIMIT_BYTES)
    assert (await look(await serve(health=says(), models=models))).models is None


def test_reasons_are_a_closed_set() -> None:
    reasons = {"refused", "unreachable", "tls", "timeout", "status", "descriptors", "protocol"}
    assert reasons == set(ADVICE) == set(WHY)


@asynccontextmanager
async def running(prober: Prober) -> AsyncIterator[None]:
    """Probes meanwhile, for 20 s at most."""
    task = asyncio.get_running_loop().create_task(prober.run())
    async with asyncio.timeout(20):
        yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("kept_s", [None, 100.0])
async def test_no_cookies_and_a_connection_for_each_probe(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, kept_s: float | None
) -> None:
    """Also for what a probe asks besides, if nothing comes between."""
    seen: list[tuple[str, str | None, int]] = []
    interval_s = SETTINGS.probe_interval_s
    if kept_s is not None:
        monkeypatch.setattr(probes, "_KEPT_S", kept_s)
        interval_s = 2 * kept_s

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        client_port = request.transport.get_extra_info("peername")[1]
        seen.append((request.path, request.headers.get("Cookie"), client_port))
        return web.Response(headers={"Set-Cookie": "a=b; Path=/"})

    url = await serve(health=answer, models=answer, metrics=answer, version=answer)
    wanted, enough = 8 if kept_s is None else 4, asyncio.Event()
    settings = ControlSettings(probe_deadline_s=10.0, probe_interval_s=interval_s)
    prober = Prober(settings, lambda *_: enough.set() if len(seen) >= wanted else None)
    prober.add(0, url)
    async with running(prober):
        await enough.wait()
    asked, cookies, ports = zip(*seen[:wanted], strict=True)
    assert asked[:4] == ("/health", "/v1/models", "/metrics", "/version")
    assert set(cookies) == {None}
    first = set(ports[:4])
    assert first.isdisjoint(ports[4:]) if kept_s is None else len(first) == 1


async def test_what_hangs_hides_nothing_else(serve: Serve) -> None:
    forever = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await forever.wait()
        return web.Response()

    url = await serve(health=says(), models=hang, metrics=says(text=METRICS))
    found = await look(url, HASTY)
    assert found.models is None
    assert found.scrape is not None
    forever.set()


async def test_prober_watches_every_replica_and_can_be_nudged(serve: Serve) -> None:
    url = await serve(health=says())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = f"http://127.0.0.1:{listener.getsockname()[1]}"
    seen: list[tuple[int, str]] = []
    again = asyncio.Event()

    def on_probe(slot: int, result: Probe) -> None:
        seen.append((slot, result.reason))
        if len(seen) > 2:
            again.set()

    slow = ControlSettings(probe_interval_s=3600, probe_deadline_s=10.0)
    prober = Prober(slow, on_probe)
    prober.add(0, url)
    prober.add(1, dead)
    async with running(prober):
        await prober.first_round.wait()
        assert sorted(seen) == [(0, "ok"), (1, "refused")]
        prober.nudge(7)  # nobody
        prober.nudge(1)
        await again.wait()
    assert seen[2] == (1, "refused")


async def test_a_probe_without_a_descriptor_is_no_word_on_the_replica(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[tuple[int, str]] = []
    enough = asyncio.Event()

    def on_probe(slot: int, probe: Probe) -> None:
        seen.append((slot, probe.reason))
        if len(seen) > 5:
            enough.set()

    prober = Prober(ControlSettings(probe_interval_s=0.01, probe_deadline_s=10.0), on_probe)
    prober.add(0, "http://127.0.0.1:9")
    prober.add(1, "http://no.such.host.invalid:9")  # nobody could look it up
    with no_descriptors():
        async with running(prober):
            await enough.wait()
    assert set(seen) == {(0, "descriptors"), (1, "descriptors")}
    assert caplog.text.count("no replica can be probed: this process has no file descriptor") == 1


async def test_prober_without_replicas_is_done_at_once() -> None:
    prober = Prober(SETTINGS, lambda _slot, _probe: None)
    async with running(prober):
        await prober.first_round.wait()


async def test_replicas_come_and_go_while_others_are_probed() -> None:
    seen: list[tuple[int, str]] = []
    probed = asyncio.Event()

    def on_probe(slot: int, probe: Probe) -> None:
        seen.append((slot, probe.reason))
        probed.set()

    often = ControlSettings(probe_interval_s=0.01, probe_deadline_s=10.0)
    prober = Prober(often, on_probe)
    prober.add(0, "http://127.0.0.1:9")
    async with running(prober):
        await prober.first_round.wait()
        prober.add(5, "http://127.0.0.1:9")
        while (5, "refused") not in seen:
            probed.clear()
            await probed.wait()
        prober.remove(5)
        prober.remove(5)  # nobody any more
        prober.nudge(5)
        prober.configure(often, None, None)
        seen.clear()
        while len(seen) < 5:
            probed.clear()
            await probed.wait()
        assert {slot for slot, _ in seen} == {0}


async def test_who_tokenizes() -> None:
    said = {
        "good": ok(b'{"count": 1, "tokens": [7]}'),
        "bad": ok(b'{"count": 1}'),
        "other": ok(b'{"tokens": []}'),
        "nested": ok(b'{"more":%b}' % NESTED.encode()),
        "none": ok(b"{}").replace(b"200 OK", b"404 Not Found"),
    }
    unread = "no answer that can be read"
    expected = {
        "good": "", "bad": unread, "other": unread, "nested": unread, "none": "status 404",
    }  # fmt: skip
    async with open_session(ControlSettings()) as session:
        for name, answer in said.items():
            async with Upstream(answering(answer)) as replica:
                assert await tokenizes(session, replica.url, "m") == expected[name]
                assert replica.asked[0].line.startswith(b"POST /tokenize ")
        assert await tokenizes(session, "http://127.0.0.1:9", "m") == "no connection"

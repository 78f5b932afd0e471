"""The admin port over a real socket, in front of a real (but idle) control plane."""

import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from tokenlane import __version__
from tokenlane.config.settings import ServerSettings, Settings, TokenSettings
from tokenlane.control.admin import admin_app
from tokenlane.control.admin_access import AdminAccess
from tokenlane.control.admin_server import AdminRunner
from tokenlane.control.checks import check_settings
from tokenlane.control.dashboard.view import View
from tokenlane.control.fleet_table import FleetTable, Probe
from tokenlane.control.gateway_state import GatewayState
from tokenlane.control.reload import InForce, Reloader, read_all
from tokenlane.control.roster import Roster
from tokenlane.control.tokenizers.finder import TokenizerSource
from tokenlane.control.tokenizers.resolution import given_sources
from tokenlane.control.worker_process import WorkerProcess
from tokenlane.control.workers import WorkerPool
from tokenlane.telemetry.load_board import SharedBoard, create_board
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.exposition import Totals
from tokenlane.telemetry.metrics.segment import MetricsSegment, create_segment
from tokenlane.telemetry.stalls.stall import Stall

SETTINGS = Settings(
    backends=("http://127.0.0.1:9", "http://127.0.0.1:10"),
    server=ServerSettings(workers=2),
    tokens=TokenSettings(folders={"m": "/models/m"}),
)


@dataclass
class Plane:
    """The pieces behind the admin port, and its URL."""

    view: View
    state: GatewayState
    table: FleetTable
    segment: MetricsSegment
    board: SharedBoard
    url: str

    @property
    def workers(self) -> list[WorkerProcess]:
        assert self.state.pool is not None
        return self.state.pool.workers


async def refuse(_: InForce) -> list[str]:
    return ["nothing is reloaded here"]


@asynccontextmanager
async def opened() -> AsyncIterator[Plane]:
    """An admin port that is served."""
    board_fd, metrics_fd = create_board(8, 2), create_segment()
    table, totals = FleetTable(SETTINGS.backends, SETTINGS.control), Totals()
    totals.adopt(0, metrics_fd)
    board = SharedBoard(board_fd, None)
    state = GatewayState(SETTINGS, table, totals, board, given_sources(SETTINGS))
    state.pool = WorkerPool(
        (), SETTINGS, ("127.0.0.1", 0), board_fd, totals,
        fleet=lambda: table.state, keys=None, on_news=lambda *_: None,
    )  # fmt: skip
    state.workers = state.pool.workers
    reloader = Reloader(None, read_all(SETTINGS), check_settings, refuse)
    roster = Roster(table, 8, board.load, lambda *_: None)
    view = View(state, roster, reloader)
    access = AdminAccess(lambda: SETTINGS.admin, lambda: None)
    runner = AdminRunner(admin_app(view), access, shutdown_timeout=0.01)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    yield Plane(view, state, table, MetricsSegment(metrics_fd), SharedBoard(board_fd, 1), url)
    await runner.cleanup()
    os.close(board_fd)
    os.close(metrics_fd)


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    async with opened() as made:
        yield made


Fetch = Callable[..., Awaitable[tuple[int, Any, aiohttp.ClientResponse]]]


@pytest.fixture
async def fetch(plane: Plane) -> AsyncIterator[Fetch]:
    async with aiohttp.ClientSession(plane.url) as session:

        async def ask(path: str, method: str = "GET", **headers: str) -> Any:
            async with session.request(method, path, headers=headers) as response:
                is_json = response.content_type == "application/json"
                body = await response.json() if is_json else await response.text()
                return response.status, body, response

        yield ask


async def test_ready_only_with_a_worker_and_a_replica(plane: Plane, fetch: Fetch) -> None:
    async def unready() -> tuple[int, str]:
        status, body, response = await fetch("/readyz")
        assert (status == 503) == ("Retry-After" in response.headers)
        return status, body.get("error", {}).get("message", "")

    assert await unready() == (503, "No worker is ready.")
    plane.workers[1].state = "ready"
    assert await unready() == (503, "No replica is up.")
    plane.table.observe(1, Probe("ok"))
    assert await unready() == (200, "")
    plane.state.draining = True
    assert await unready() == (503, "The gateway is draining.")
    assert (await fetch("/livez"))[:2] == (200, {"status": "ok"})


@pytest.mark.parametrize("accept", ["identity", "gzip", "br, GZIP;q=0.5", "gzip;q=0, identity"])
async def test_metrics(plane: Plane, fetch: Fetch, accept: str) -> None:
    plane.segment.counter(families.RETRIES, "refused").inc(3)
    plane.board.add(1, 2, 700)
    plane.table.observe(1, Probe("ok"))
    status, text, response = await fetch("/metrics", **{"Accept-Encoding": accept})
    assert status == 200
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    packed = accept in {"gzip", "br, GZIP;q=0.5"}
    assert response.headers.get("Content-Encoding") == ("gzip" if packed else None)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in text_string_to_metric_families(text)
        for sample in metric.samples
    }
    assert samples["tokenlane_retries_total", "refused"] == 3
    assert samples["tokenlane_replica_in_flight_requests", "127.0.0.1:10"] == 2
    assert samples["tokenlane_replica_queued_tokens", "127.0.0.1:10"] == 700
    assert samples["tokenlane_replica_up", "127.0.0.1:9"] == 0
    assert samples["tokenlane_replica_up", "127.0.0.1:10"] == 1
    assert samples["tokenlane_workers", "starting"] == 2
    assert samples["tokenlane_worker_restarts_total",] == 0
    # Every family of the table is announced, used or not.
    for family in families.FAMILIES:
        assert f"# HELP {family.name} " in text
    # Workers without a process have none of these.
    assert samples["process_open_fds", "supervisor"] > 3
    assert samples["process_open_fds", "supervisor"] < samples["process_max_fds", "supervisor"]
    assert samples["process_resident_memory_bytes", "supervisor"] > 2**20
    assert samples["process_cpu_seconds_total", "supervisor"] > 0
    age_s = time.time() - samples["process_start_time_seconds", "supervisor"]
    assert 0 <= age_s < 24 * 3600
    assert ("process_open_fds", "worker-0") not in samples


async def test_replicas_and_status(plane: Plane, fetch: Fetch) -> None:
    plane.board.add(0, 1, 50)
    plane.table.observe(0, Probe("ok", ("m",), 4096))
    status, body, _ = await fetch("/replicas")
    assert status == 200
    first, second = body["replicas"]
    assert (first["id"], first["up"], first["models"]) == ("127.0.0.1:9", True, ["m"])
    assert (first["in_flight_requests"], first["queued_tokens"]) == (1, 50)
    assert (second["up"], second["in_flight_requests"]) == (False, 0)

    status, body, _ = await fetch("/status.json")
    assert status == 200
    assert body["version"] == __version__
    assert body["replicas"][0] == first
    assert body["models"] == {"m": ["127.0.0.1:9"]}
    assert [worker["state"] for worker in body["workers"]] == ["starting", "starting"]


async def test_stalls_as_json_and_as_a_page(plane: Plane, fetch: Fetch) -> None:
    assert plane.state.pool is not None
    plane.state.pool.stalls.stalled(
        Stall(worker=1, at_s=1e9, began_s=5.0, length_s=0.25, cause="gc", stack=("a.py:1 f",))
    )
    status, body, _ = await fetch("/stalls")
    assert status == 200
    [stall] = body["stalls"]
    assert (stall["worker"], stall["cause"], stall["stack"]) == (1, "gc", ["a.py:1 f"])
    for path, accept in (("/stalls", "text/html"), ("/stalls?format=html", "*/*")):
        status, text, response = await fetch(path, Accept=accept)
        assert status == 200
        assert response.content_type == "text/html"
        assert "a.py:1 f" in text


async def test_nobody_explains_before_a_worker_is_ready(fetch: Fetch) -> None:
    status, body, response = await fetch("/explain", "POST")
    assert (status, body["error"]["code"]) == (503, "not_ready")
    assert response.headers["Retry-After"] == "1"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/", 405, "method_not_allowed"),
        ("GET", "/../etc/passwd", 404, "not_found"),
        ("POST", "/metrics", 405, "method_not_allowed"),
        ("DELETE", "/replicas", 405, "method_not_allowed"),
        ("PUT", "/explain", 405, "method_not_allowed"),
    ],
)
async def test_errors_have_openais_shape(
    fetch: Fetch, method: str, path: str, status: int, code: str
) -> None:
    got, body, response = await fetch(path, method)
    assert got == status
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == code
    if status == 405:
        assert ("POST" if path == "/explain" else "GET") in response.headers["Allow"]


async def test_a_bug_is_a_500_without_a_traceback(
    plane: Plane, fetch: Fetch, caplog: pytest.LogCaptureFixture
) -> None:
    plane.workers[0] = None  # type: ignore[call-overload]
    status, body, _ = await fetch("/status.json")
    assert status == 500
    assert body["error"]["code"] == "internal_error"
    assert "Traceback" not in body["error"]["message"]
    assert "Traceback" in caplog.text


def test_the_lines_that_greet(plane: Plane) -> None:
    plane.table.observe(0, Probe("ok", ("m", "bare")))
    plane.state.urls = "http://127.0.0.1:1", "http://127.0.0.1:2"
    lines: list[str] = []
    plane.view.announce(lines.append)
    text = "\n".join(lines)
    for expected in (
        "http://127.0.0.1:1",
        "http://127.0.0.1:2",
        "affinity",
        "http://127.0.0.1:9  up  m, bare",
        "http://127.0.0.1:10  down: not looked at yet",
        "m = /models/m  (given)",
        "bare: none given, routed by text prefix",
    ):
        assert expected in text


def test_the_lines_that_warn(plane: Plane) -> None:
    def said() -> str:
        lines: list[str] = []
        plane.view.announce(lines.append)
        return "\n".join(lines)

    plane.table.observe(0, Probe("refused"))
    assert "127.0.0.1:9  down: nothing listens there; is vLLM running" in said()
    assert "no replica is up yet: requests get 503 until one is" in said()
    plane.table.observe(1, Probe("ok", ("other",), roots={"other": "/nowhere"}))
    assert "no replica that is up serves m; is the name right?" in said()
    assert (
        "tokenizers of models that come later are not looked for, their replicas are asked for ids;"
    ) in said()
    plane.state.sources["other"] = TokenizerSource(None, "no tokenizer.json here in /nowhere")
    assert (
        "other: none found (no tokenizer.json here in /nowhere), routed by text prefix;"
        " --tokenizer other=DIR names its folder"
    ) in said()
    plane.state.sources["other"] = TokenizerSource(None, "http://a/tokenize answers", asked=True)
    assert (
        "other: none found, so its replicas are asked for ids (http://a/tokenize answers)" in said()
    )
    assert plane.view.status()["tokenized_by_replicas"] == ["other"]
    plane.segment.gauge(families.TOKENIZER_PATH, "m", "encoder", "fastokens").set(1.0)
    plane.segment.gauge(families.TOKENIZER_PATH, "m", "template", "replica").set(1.0)
    assert "m = /models/m  (given, fastokens, chats by its replicas)" in said()


def test_a_replica_that_lists_no_model_is_up_all_the_same(plane: Plane) -> None:
    plane.table.observe(0, Probe("ok"))
    lines: list[str] = []
    plane.view.announce(lines.append)
    said = "\n".join(lines)
    assert "127.0.0.1:9  up  lists no model, so it gets requests for any" in said
    assert "no replica is up" not in said


async def test_doubts_are_told(plane: Plane, fetch: Fetch) -> None:
    plane.workers[0].doubts = {"m": ("its class rebuilds", "it ships code")}
    lines: list[str] = []
    plane.view.announce(lines.append)
    told = "ids of m may differ from vLLM's: its class rebuilds; it ships code"
    assert any(told in line for line in lines)
    both = {"m": ["its class rebuilds", "it ships code"]}
    assert (await fetch("/status.json"))[1]["tokenizer_doubts"] == both
    assert (await fetch("/live.json"))[1]["doubts"] == both
    assert 'tokenlane_tokenizer_doubts{model="m"} 2.0' in (await fetch("/metrics"))[1]

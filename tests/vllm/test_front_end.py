"""A real vLLM server's starved front end is named within 30 s, with its signs, and a busy engine's
never.

FRONT_END_SECONDS=150 watches each healthy load for so long: ten minutes in all.
"""

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from bench.loads.clients import Served, drive, warm
from bench.loads.closed_loop import Plan
from bench.loads.engine_prompts import EnginePrompts
from bench.loads.workload import CHAT
from bench.tools.client import fetch
from bench.tools.quota import quota_of
from bench.tools.systems import Proxy, gateway
from bench.tools.vllm_server import Server, vllm_server
from tests.vllm.conftest import Report
from tokenlane.control.front_end import WINDOW_LOOKS, FrontEnd

WATCHED_S = float(os.environ.get("FRONT_END_SECONDS", "25"))
NAMED_WITHIN_S = 30.0
LOOK_S = 0.5

Pair = tuple[Server, Proxy]


@pytest.fixture(scope="module")
def pair(vllm_python: Path) -> Iterator[Pair]:
    """A server, and a gateway that sends it text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_PYTHON", str(vllm_python))
        with (
            vllm_server() as server,
            gateway([server.url], None, "--tokens-forward-tokens", "off", plain=True) as proxy,
        ):
            yield server, proxy


def seen(proxy: Proxy) -> FrontEnd:
    """Return what the gateway says of its one replica's front end."""
    assert proxy.admin_port is not None
    (replica,) = json.loads(fetch(proxy.admin_port, "/status.json").body)["replicas"]
    return msgspec.convert(replica["front_end"] or {}, FrontEnd)


def named_after_s(proxy: Proxy, load: Future[Served] | None, seconds_s: float) -> float | None:
    """Return when the replica was called starved, None if it was not."""
    began_s = time.monotonic()
    while (now_s := time.monotonic() - began_s) < seconds_s:
        if seen(proxy).starved:
            return now_s
        assert load is None or not load.done() or load.result().failed == 0
        time.sleep(LOOK_S)
    return None


@pytest.mark.parametrize(
    ("tokens", "out", "clients"),
    [(0, 0, 0), (12_000, 1, 4), (200, 600, 8), (50, 16, 2)],
    ids=["idle", "long prefill", "long decode", "small and many with room"],
)
def test_a_healthy_load_is_not_called_starved(
    pair: Pair, report: Report, request: pytest.FixtureRequest, tokens: int, out: int, clients: int
) -> None:
    _, proxy = pair
    seconds_s = WATCHED_S
    with ThreadPoolExecutor(1) as threads:
        load = None
        if clients:
            bodies = EnginePrompts(out, stream=True).new(300, tokens)
            plan = Plan(proxy.port, CHAT, bodies, clients, seconds_s + 5, limit_s=seconds_s + 60)
            load = threads.submit(drive, plan, {})
        assert named_after_s(proxy, load, seconds_s) is None
        answered = load.result().per_s if load is not None else None
    assert bool(answered) is bool(clients)
    name = request.node.callspec.id
    report.add(f"front end, {name}", f"silent for {seconds_s:.0f} s, {answered or 0:.1f} answers/s")


def test_a_starved_front_end_is_named(pair: Pair, report: Report) -> None:
    server, proxy = pair
    texts = EnginePrompts().known(4_400)
    warm(proxy.port, CHAT, texts)
    with quota_of(server.front) as quota, ThreadPoolExecutor(1) as threads:
        quota.limit(0.25)

        def asked(clients: int) -> Future[Served]:
            # Two windows of looks at this number of clients.
            seconds_s = 2.0 * WINDOW_LOOKS + 2.0
            plan = Plan(proxy.port, CHAT, texts, clients, seconds_s, limit_s=120.0)
            return threads.submit(drive, plan, {})

        load = asked(16)
        after_s = named_after_s(proxy, load, NAMED_WITHIN_S)
        named = seen(proxy)
        load.result()
        asked(4).result()
        quota.limit(None)
    assert after_s is not None
    signs = seen(proxy)
    assert signs.flat, signs
    assert signs.step_s is not None
    report.add("front end held to a quarter of a core", f"named after {after_s:.1f} s: {named.why}")
    report.add("throughput with 4 and with 16 clients then", "flat")

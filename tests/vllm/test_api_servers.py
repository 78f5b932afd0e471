"""A real vLLM with two API servers: its ids are proven, its counts are whole, and whichever of the
two answers, an answer by ids is that by text."""

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.vllm.conftest import Report
from tests.vllm.processes import Server, healthy, vllm_server
from tests.vllm.test_forwarding import CHAT, Body, said
from tests.vllm.test_gateway import ask, wait_for
from tests.vllm.test_kv_events import Gateway
from tokenlane.fleet_state import IdKind

SERVERS = 2
COUNT = 60


@pytest.fixture(scope="module")
def server(vllm_python: Path, model_folder: Path) -> Iterator[Server]:
    flags = ("--api-server-count", str(SERVERS))
    with healthy(vllm_server("vllm-api-servers", vllm_python, model_folder, *flags)) as server:
        yield server


def cpu_s(server: Server) -> dict[int, float]:
    """Return the CPU seconds of each API server, by its process."""
    found = {}
    for one in psutil.Process(server.process.pid).children(recursive=True):
        if "APIServer" in " ".join(one.cmdline()):
            times = one.cpu_times()
            found[one.pid] = times.user + times.system
    return found


def test_two_api_servers_are_one_replica(
    server: Server, model_folder: Path, report: Report
) -> None:
    began = cpu_s(server)
    assert len(began) == SERVERS
    front = Gateway(
        "gateway-api-servers", {"tiny": model_folder}, server, TOKENLANE_TOKENS_AS_TEXT_RATIO="0"
    )
    try:
        front.wait()
        wait_for(lambda: front.sample("tokenlane_id_proof", server) == len(IdKind), 120.0)
        tokens = server.metric("vllm:prompt_tokens_total")
        counted = 0
        for number in range(COUNT):
            messages = [{"role": "user", "content": f"Say {number} things, please."}]
            body: Body = {"messages": messages, "max_tokens": 12, "temperature": 0}
            _, _, by_text = ask(server, CHAT, body | {"cache_salt": "text"})
            status, headers, by_ids = ask(front, CHAT, body | {"cache_salt": "ids"})
            assert (status, headers["x-tokenlane-forwarded"]) == (200, "ids")
            assert said(by_ids) == said(by_text)
            counted += 2 * json.loads(by_ids)["usage"]["prompt_tokens"]
        # Each of the two counts its own requests; the page has the sum, whichever of them is asked.
        assert server.metric("vllm:prompt_tokens_total") - tokens == counted
    finally:
        front.stop()
    used = {pid: cpu - began[pid] for pid, cpu in cpu_s(server).items()}
    assert all(spent > 0.05 for spent in used.values()), used
    report.add("two API servers: chats answered by ids as by text", f"{COUNT} of {COUNT}")

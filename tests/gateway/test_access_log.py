"""The access log of a whole gateway: real processes, real requests, and what must not be in it."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control.test_supervisor import Gateway, until
from tests.raw import CHAT, Upstream, answering, post
from tests.raw import chat as raw_chat
from tests.raw import until as until_async
from tests.support import demo_tokenizer
from tests.support import gateway as gateway_of
from tokenlane.config.settings import LogSettings
from tokenlane.gateway.recorder import Recorder
from tokenlane.gateway.request_record import RequestRecord
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.telemetry.log.access_log import AccessLog
from tokenlane.telemetry.metrics.segment import MetricsSegment
from tokenlane.tokens.demo import demo_folder

pytestmark = pytest.mark.slow

SECRET = "sk-not-to-be-written-anywhere"
PROMPT = "a prompt that is nobody's business"


@pytest.fixture(scope="module")
def fleet() -> Iterator[FleetProcess]:
    with FleetProcess(1, free_ports(1)) as fleet:
        yield fleet


def serving(fleet: FleetProcess, folder: Path, **log: Any) -> Gateway:
    config = folder / "gateway.yaml"
    price = {"input_per_million": 2.0, "output_per_million": 10.0}
    config.write_text(json.dumps({"log": log, "prices": {"demo": price}}))
    flags = ("--config", str(config), "--tokenizer", f"demo={demo_folder()}")
    return Gateway("serve", "--backend", fleet.urls[0], "--workers", "2", *flags)


def chat(gateway: Gateway, model: str = "demo", stream: bool = False) -> int:
    message = {"role": "user", "content": PROMPT}
    body = {"model": model, "messages": [message], "stream": stream, "user": SECRET}
    return gateway.ask(f"/v1/chat/completions?key={SECRET}", body)[0]


def metric(gateway: Gateway, name: str) -> float:
    page = gateway.ask("/metrics", admin=True)[1].decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page if line.startswith(name))


def test_a_line_for_every_request(fleet: FleetProcess, tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    with serving(fleet, tmp_path, access=str(path), sample_ratio=1.0) as gateway:
        assert [chat(gateway), chat(gateway, stream=True), chat(gateway, "none-such")] == [
            200,
            200,
            404,
        ]
        until(lambda: metric(gateway, "tokenlane_access_log_lines_total") == 3)
        assert metric(gateway, "tokenlane_access_log_dropped_total") == 0
        gateway.ask("/nowhere")
        assert gateway.stop() == 0
    text = path.read_text()
    assert SECRET not in text
    assert PROMPT not in text
    lines = [json.loads(line) for line in text.splitlines()]  # two workers: in any order
    (whole,) = [line for line in lines if line["status"] == 200 and "ttft_s" not in line]
    (streamed,) = [line for line in lines if line["status"] == 200 and "ttft_s" in line]
    (unknown,) = [line for line in lines if line["status"] == 404 and line["stages_s"]]
    (nowhere,) = [line for line in lines if line["status"] == 404 and not line["stages_s"]]
    assert len(lines) == 4

    assert (whole["status"], whole["outcome"], whole["logged"]) == (200, "ok", "sampled")
    assert (whole["route"], whole["model"], whole["tenant"]) == ("/v1/chat/completions", "demo", "")
    assert fleet.urls[0].endswith(whole["replica"])
    assert (whole["policy"], whole["reason"], whole["attempts"]) == ("affinity", "only-one", 1)
    assert whole["prompt_tokens_predicted"] == whole["prompt_tokens_actual"] > 0
    assert whole["cached_tokens_predicted"] == whole["cached_tokens_actual"] == 0
    assert whole["output_tokens"] > 0
    cost = 2.0 * whole["prompt_tokens_actual"] + 10.0 * whole["output_tokens"]
    assert whole["estimated_cost"] == pytest.approx(cost / 1e6)
    assert "estimated_cost" not in unknown
    assert len(whole["request_id"]) >= 16
    stages = {"read", "inspect", "tokens", "route", "attempt", "first_byte", "relay"}
    assert set(whole["stages_s"]) == stages
    assert abs(sum(whole["stages_s"].values()) - whole["duration_s"]) < 1e-4

    assert 0 < streamed["ttft_s"] <= streamed["duration_s"]
    assert (unknown["status"], unknown["outcome"], unknown["logged"]) == (
        404,
        "client_error",
        "failed",
    )
    assert (unknown["method"], unknown["error_code"]) == ("POST", "model_not_found")
    assert unknown["model"] == "other"
    assert (nowhere["method"], nowhere["error_code"]) == ("GET", "not_found")
    assert (nowhere["route"], nowhere["model"]) == ("other", "other")


@pytest.mark.parametrize(
    ("status", "outcome", "took_s", "sample_ratio", "why"),
    [
        (200, "ok", 1.0, 0.0, None),
        (200, "ok", 1.0, 1.0, "sampled"),
        (200, "ok", 2.0, 0.0, "slow"),
        (200, "truncated", 1.0, 0.0, "failed"),
        (404, "ok", 1.0, 0.0, "failed"),
        (499, "client_gone", 1.0, 0.0, "failed"),
        (503, "gateway_error", 9.0, 1.0, "failed"),
    ],
)
def test_what_is_always_written(
    tmp_path: Path,
    status: int,
    outcome: str,
    took_s: float,
    sample_ratio: float,
    why: str | None,
) -> None:
    path = tmp_path / "access.jsonl"
    log = AccessLog(LogSettings(access=str(path), sample_ratio=sample_ratio, slow_s=2.0))
    record = RequestRecord(100.0)
    record.outcome, record.ended_s = outcome, 100.0 + took_s
    Recorder(MetricsSegment.private(), access=log).record(record, status)
    log.close()
    assert [json.loads(line)["logged"] for line in path.read_text().splitlines()] == (
        [why] if why else []
    )


async def test_a_replica_that_got_nothing_has_no_prediction(tmp_path: Path) -> None:
    busy = b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n"
    line: dict[str, Any] = {}
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
        while line.get("attempts") != 2 or line["replica"] != dead:  # who is asked first is drawn
            log = AccessLog(LogSettings(access=str(tmp_path / "log"), format="json"))
            async with (
                Upstream(answering(busy)) as upstream,
                gateway_of(
                    upstream.url, f"http://{dead}", tokenizer=demo_tokenizer(), access=log
                ) as bench,
            ):
                await bench.ask(post(CHAT, raw_chat()))
                await until_async(bench.outcomes)
            log.close()
            line = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert line["error_code"] == "upstream_unreachable"
    assert "cached_tokens_predicted" not in line


def test_a_request_that_is_none_is_written_too(fleet: FleetProcess, tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    with serving(fleet, tmp_path, access=str(path)) as gateway:
        with socket.create_connection(("127.0.0.1", gateway.port), 30) as client:
            client.sendall(b"BAD\x00WORD / HTTP/1.1\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 400 ")
        assert metric(gateway, "tokenlane_request_duration_seconds_sum") >= 0
        assert gateway.stop() == 0
    refused = json.loads(path.read_text())
    assert (refused["status"], refused["route"], refused["outcome"]) == (
        400,
        "other",
        "client_error",
    )
    assert (refused["method"], refused["error_code"]) == ("_OTHER", "control_character")
    assert 0 <= refused["duration_s"] < 30


def test_standard_output_is_the_default_and_may_be_closed(
    fleet: FleetProcess, tmp_path: Path
) -> None:
    with serving(fleet, tmp_path, sample_ratio=1.0) as gateway:
        assert gateway.process.stdout is not None
        assert chat(gateway) == 200
        while "request_id" not in (line := gateway.process.stdout.readline()):
            assert line
        assert json.loads(line)["status"] == 200
        gateway.process.stdout.close()
        assert [chat(gateway) for _ in range(3)] == [200] * 3
        until(lambda: metric(gateway, 'tokenlane_access_log_dropped_total{reason="failed"}') == 3)
        assert chat(gateway) == 200


def test_a_file_that_cannot_be_written_ends_the_start(fleet: FleetProcess, tmp_path: Path) -> None:
    with serving(fleet, tmp_path, access="/no/such/folder/log") as gateway:
        assert gateway.process.wait(30) == 2
        assert gateway.process.stderr is not None
        said = gateway.process.stderr.read()
    assert "log.access: /no/such/folder/log cannot be written (No such file or directory)" in said
    assert "Traceback" not in said

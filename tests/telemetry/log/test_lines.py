"""Lines of the access log: what they say, and that they stay lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.telemetry.log.lines import Entry, json_line, text_line
from tokenlane.telemetry.log.sink import PIECE_LIMIT_BYTES

REFUSED = Entry(
    5.0,
    "failed",
    b"req-1",
    "other",
    "other",
    404,
    "client_error",
    0.0001234,
    [],
    method="GET",
    error_code="not_found",
)
SERVED = Entry(
    5.0, "slow", b"req-2", "/v1/chat/completions", "demo", 200, "ok", 1.5,
    [0.001, 0.0002, 0.003, 0.00001, 0.0001, 0.5, 0.9957], ttft_s=0.51, replica="a:9000", attempts=2,
    policy="affinity", reason="prefix", rung="cache", prompt_tokens=96, prompt_tokens_actual=96,
    cached_tokens=64, cached_tokens_actual=48, output_tokens=16,
)  # fmt: skip


def test_json_says_what_is_known() -> None:
    assert json.loads(json_line(SERVED, 1_700_000_000.1234, 3)) == {
        "time": "2023-11-14T22:13:20.123Z",
        "request_id": "req-2",
        "tenant": "",
        "method": "POST",
        "route": "/v1/chat/completions",
        "model": "demo",
        "status": 200,
        "outcome": "ok",
        "logged": "slow",
        "worker": 3,
        "replica": "a:9000",
        "attempts": 2,
        "policy": "affinity",
        "reason": "prefix",
        "rung": "cache",
        "prompt_tokens_predicted": 96,
        "prompt_tokens_actual": 96,
        "cached_tokens_predicted": 64,
        "cached_tokens_actual": 48,
        "output_tokens": 16,
        "ttft_s": 0.51,
        "duration_s": 1.5,
        "stages_s": {
            "read": 0.001,
            "inspect": 0.0002,
            "tokens": 0.003,
            "route": 0.00001,
            "attempt": 0.0001,
            "first_byte": 0.5,
            "relay": 0.9957,
        },
    }


def test_json_leaves_out_what_is_not_known() -> None:
    said = json.loads(json_line(REFUSED, 0.0, 0))
    assert {"replica", "policy", "rung", "ttft_s", "bail", "output_tokens"}.isdisjoint(said)
    assert (said["stages_s"], said["attempts"]) == ({}, 0)
    assert (said["method"], said["error_code"]) == ("GET", "not_found")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (REFUSED, "22:13:20.000 404 other other client_error (not_found) 0.1 ms w0 req-1"),
        (
            SERVED,
            (
                "22:13:20.000 200 /v1/chat/completions demo -> a:9000 (affinity prefix) attempt 2"
                " 96 tokens (48 cached) by cache +16 first token 510.0 ms 1500.0 ms w0 req-2"
            ),
        ),
    ],
)
def test_text(entry: Entry, said: str) -> None:
    assert text_line(entry, 1_700_000_000.0, 0).decode() == said + "\n"


@given(st.binary(max_size=5000))
def test_an_id_is_whatever_a_client_chose(request_id: bytes) -> None:
    entry = Entry(5.0, "failed", request_id, "other", "other", 404, "ok", 0.1, [])
    for line in (json_line(entry, 0.0, 0), text_line(entry, 0.0, 0)):
        assert line.count(b"\n") == 1
        assert b"\r" not in line
        assert b"\x1b" not in line
        assert len(line) < PIECE_LIMIT_BYTES

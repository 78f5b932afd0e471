"""The agent trace bench: its verdict by hand, and all of it once, small."""

import asyncio
from pathlib import Path

import pytest

from bench.experiments import agent_trace
from bench.experiments.agent_trace import Served
from bench.loads import text_trace
from bench.tools.processes import BenchError
from tests.bench.traces import lines


def test_the_verdict() -> None:
    requests = [
        Served("a", "affinity cold", 100, 0, 0),
        Served("b", "affinity cold", 300, 0, 16),
        Served("a", "affinity prefix", 120, 96, 64),
        Served("a", "affinity bail", 20, 0, None),
    ]
    assert agent_trace.judge(requests, bound_tokens=120, block_tokens=16) == {
        "cached_tokens": 96,
        "bound_tokens": 120,
        "share_of_bound": 0.8,
        "work_imbalance": 300 * 4 / 444,
        "predicted_within_one_block": 0.5,
    }


@pytest.mark.slow
def test_a_small_replay_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(lines(30))
    result = agent_trace.run(path, ["affinity"], 1.0, 2, 1e6)
    assert result["policies"]["affinity"]["share_of_bound"] >= 0.95
    assert result["policies"]["affinity"]["predicted_within_one_block"] >= 0.99
    assert result["policies"]["affinity"]["work_imbalance"] < 2
    assert "affinity" in agent_trace.show(result)


def test_a_failed_request_ends_the_replay_with_a_sentence() -> None:
    turns = [text_trace.Turn("s", 0.0, b"{}"), text_trace.Turn("s", 0.0, b"{}")]

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbusy")
        await writer.drain()
        writer.close()

    async def send() -> None:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            await agent_trace.replay(f"http://127.0.0.1:{port}", turns, 1.0)

    with pytest.raises(ExceptionGroup) as failures:
        asyncio.run(send())
    assert failures.group_contains(BenchError, match="answered 503: b'busy'")

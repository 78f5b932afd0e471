"""The agent trace bench: its bound and its verdict by hand, and all of it once, small."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import agent_trace, trace
from bench.agent_trace import Served
from bench.processes import BenchError


def packed(ids: list[int]) -> bytes:
    return b"".join(one.to_bytes(4, "little") for one in ids)


def test_the_bound_by_hand() -> None:
    prompts = [
        [1, 1, 2, 2, 3],  # nothing cached
        [1, 1, 2, 2, 3],  # two blocks
        [1, 1, 2, 2],  # fully cached: the last token's block is computed
        [1, 1, 9, 9, 9],  # one block
        [2, 2, 1, 1, 1],  # the same content elsewhere is another prefix
        [1],
        [],
    ]
    assert trace.bound_tokens(map(packed, prompts), 2) == 4 + 2 + 2


@given(st.lists(st.lists(st.integers(0, 1), max_size=12), max_size=8), st.integers(1, 3))
def test_the_bound_equals_a_search_over_all_earlier_prompts(
    prompts: list[list[int]], block: int
) -> None:
    total = 0
    for at, prompt in enumerate(prompts):
        cached = 0
        for earlier in prompts[:at]:
            common = 0
            while common < min(len(prompt), len(earlier)) and prompt[common] == earlier[common]:
                common += 1
            cached = max(cached, common // block)
        total += min(cached, max(len(prompt) - 1, 0) // block) * block
    assert trace.bound_tokens(map(packed, prompts), block) == total


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


def lines(count: int) -> bytes:
    rows = [
        {
            "timestamp": 1_000_000 + 20_000 * at,
            "session_id": f"s{at % 3}",
            "input": f"Session {at % 3}. " + "A step of the work, and its result. " * (5 + at),
            "output": "unused",
        }
        for at in range(count)
    ]
    return "\n".join(json.dumps(row) for row in reversed(rows)).encode()


def test_a_trace_is_read_in_the_order_of_time(tmp_path: Path) -> None:
    plain, packed_file = tmp_path / "trace.jsonl", tmp_path / "trace.jsonl.gz"
    plain.write_bytes(lines(6))
    packed_file.write_bytes(gzip.compress(lines(6)))
    turns = trace.turns(trace.rows(plain), "m", 7)
    assert turns == trace.turns(trace.rows(packed_file), "m", 7)
    assert [turn.session for turn in turns] == ["s0", "s1", "s2", "s0", "s1", "s2"]
    assert [round(turn.due_s, 6) for turn in turns] == [0, 0.02, 0.04, 0.06, 0.08, 0.1]
    body = json.loads(turns[0].body)
    assert (body["model"], body["max_tokens"], body["messages"][0]["role"]) == ("m", 7, "user")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), (b"", "holds no requests"), (b"[1]\n", "is not a text trace")],
)
def test_a_bad_file_is_one_clear_sentence(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BenchError, match=message):
        trace.rows(path)


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
    turns = [trace.Turn("s", 0.0, b"{}"), trace.Turn("s", 0.0, b"{}")]

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

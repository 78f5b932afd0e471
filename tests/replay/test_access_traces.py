"""An access log as a trace: what is read of it, and that its replay finds what the gateway saw."""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.raw import TEXT, post
from tests.replay.test_trace import row, write
from tests.support import demo_tokenizer, gateway, replicas
from tokenlane.cli.main import main
from tokenlane.config.settings import LogSettings
from tokenlane.replay.access_traces import read
from tokenlane.replay.trace import TraceError
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet
from tokenlane.telemetry.log import prompt_prefix
from tokenlane.telemetry.log.access_log import AccessLog
from tokenlane.tokens.blocks import block_hashes


def ids(*numbers: int) -> bytes:
    """A prompt of 16 tokens for each number."""
    return b"".join(number.to_bytes(4, "little") * 16 for number in numbers)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 5))
def test_marks_are_alike_as_far_as_prompts_are(numbers: list[int], step: int) -> None:
    one = prompt_prefix.read(
        prompt_prefix.written(prompt_prefix.marks(block_hashes(ids(*numbers), 16), step))
    )
    other = prompt_prefix.read(
        prompt_prefix.written(prompt_prefix.marks(block_hashes(ids(*numbers, 9), 16), step))
    )
    assert len(one) == 8 * (len(numbers) // step)
    assert other.startswith(one)
    changed = block_hashes(ids(7, *numbers[1:]), 16)
    if numbers and numbers[0] != 7:
        assert not set(memoryview(one).cast("Q")) & set(
            memoryview(
                prompt_prefix.read(prompt_prefix.written(prompt_prefix.marks(changed, step)))
            ).cast("Q")
        )


def test_a_long_prompt_has_a_bounded_text() -> None:
    text = prompt_prefix.written(prompt_prefix.marks(bytes(8 * 100_000), 2))
    assert len(text) == 8 * prompt_prefix.LIMIT_MARKS
    with pytest.raises(ValueError, match="cut short"):
        prompt_prefix.read(text[:-4])


def line(ended: str, *numbers: int, **other: Any) -> str:
    blocks = block_hashes(ids(*numbers), 16)
    fields = {
        "time": f"2026-11-22T00:00:{ended}Z", "request_id": "r", "status": 200, "model": "demo",
        "duration_s": 1.0, "prompt_tokens_predicted": 16 * len(numbers), "output_tokens": 4,
        "cached_tokens_actual": 16, "prefix_block_tokens": 16,
        "prefix": prompt_prefix.written(prompt_prefix.marks(blocks, 1)),
    }  # fmt: skip
    return json.dumps({**fields, **other})


def test_a_log_is_read_by_arrival(tmp_path: Path) -> None:
    path = write(
        tmp_path / "access.jsonl",
        "serving http://127.0.0.1:1",
        line("05.000", 1, 2, 3, cached_tokens_actual=None),
        line("04.500", 1, 2, duration_s=2.0),
        line("09.000", 4, status=503),
        line("09.000", 4, prefix_block_tokens=0),
    )
    trace = read(path, None)
    assert trace is not None
    assert [(one.arrival_s, one.prompt_tokens) for one in trace.requests] == [(0.0, 32), (1.5, 48)]
    assert trace.requests[1].blocks.startswith(trace.requests[0].blocks)
    assert (trace.name, trace.block_tokens, trace.working_set_blocks) == ("access", 16, 3)
    assert trace.seen_hit == 0.5


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([line("01.000", 1), line("02.000", 1, model="other")], "for demo, other; choose one"),
        ([line("01.000", 1), "{"], ":2: is no line of an access log"),
        ([line("01.000", 1), line("02.000", 1, prefix="AAAA")], ":2: .*cut short"),
        ([line("01.000", 1, prefix_block_tokens=0)], "no request that can be replayed; log.prefix"),
        ([line("01.000", 1), line("02.000", 1, prefix_block_tokens=32)], r"changed .*\[16, 32\]"),
    ],
)
def test_what_is_wrong_with_a_log_is_one_sentence(
    tmp_path: Path, lines: list[str], why: str
) -> None:
    with pytest.raises(TraceError, match=why) as failed:
        read(write(tmp_path / "access.jsonl", *lines), None)
    assert "\n" not in str(failed.value)


def test_one_model_of_several(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", line("01.000", 1), line("02.000", 1, model="other"))
    trace = read(path, "other")
    assert trace is not None
    assert len(trace.requests) == 1
    with pytest.raises(TraceError, match="models are demo, other"):
        read(path, "none")


def test_other_files_are_left_to_others(tmp_path: Path) -> None:
    assert read(write(tmp_path / "t.jsonl", row(0, 512, [1])), None) is None
    assert read(write(tmp_path / "t.txt", "garbage"), None) is None
    assert read(tmp_path / "nowhere", None) is None


REPLICAS, CACHE_BLOCKS, BLOCK_TOKENS = 2, 700, 16


def conversation(number: int) -> list[list[int]]:
    """Prompts that grow: a beginning that all share, one of its own, and turns."""
    random = Random(number)
    ids = [100 + at % 50 for at in range(400)] + [random.randrange(500, 900) for _ in range(1200)]
    turns = []
    for _ in range(4):
        turns.append(list(ids))
        ids += [random.randrange(500, 900) for _ in range(300)]
    return turns


@pytest.mark.slow
async def test_a_replay_of_the_log_finds_what_the_gateway_saw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten conversations, four at a time, through a real gateway onto replicas that evict."""
    path = tmp_path / "access.jsonl"
    log = AccessLog(
        LogSettings(access=str(path), format="json", sample_ratio=1.0, prefix_block_tokens=32)
    )
    simulated = SimulatorSettings(cache_blocks=CACHE_BLOCKS, prefill_tokens_per_s=200_000)
    turns = asyncio.Semaphore(4)
    sums = [0, 0]
    async with SimulatedFleet(simulated, tokenizer=demo_tokenizer()) as fleet:
        state = replicas(await fleet.start(REPLICAS), cache_blocks=CACHE_BLOCKS)
        async with gateway(state=state, tokenizer=demo_tokenizer(), access=log) as bench:

            async def talk(number: int) -> None:
                async with turns:
                    for ids in conversation(number):
                        body = {"model": "demo", "prompt": ids, "max_tokens": 1}
                        head = "content-type: application/json\r\n"
                        answer = await bench.ask(post(TEXT, json.dumps(body).encode(), head))
                        usage = json.loads(answer.body)["usage"]
                        sums[0] += usage["prompt_tokens"]
                        sums[1] += usage["prompt_tokens_details"]["cached_tokens"]

            await asyncio.gather(*map(talk, range(10)))
    await asyncio.to_thread(log.close)
    argv = ["replay", str(path), "--replicas", str(REPLICAS), "--policy", "affinity,random"]
    argv += ["--cache-tokens", str(CACHE_BLOCKS * BLOCK_TOKENS), "--prefill", "200000"]
    assert main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seen_hit"] == pytest.approx(sums[1] / sums[0])
    assert found["seen_hit"] > 0.5
    assert abs(found["policies"]["affinity"]["hit"] - found["seen_hit"]) < 0.03
    assert found["policies"]["random"]["hit"] < found["policies"]["affinity"]["hit"]
    assert main(argv) == 0
    assert "when it was recorded: " in capsys.readouterr().out

"""Traces as they come from disk."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tokenlane.replay.trace import TraceError, read
from tokenlane.tokens.blocks import block_hashes


def row(at_ms: int, tokens: int, ids: list[int], **other: Any) -> str:
    fields = {"timestamp": at_ms, "input_length": tokens, "output_length": 5, "hash_ids": ids}
    return json.dumps({**fields, **other})


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_requests_in_order_of_arrival_from_zero(tmp_path: Path) -> None:
    lines = row(9000, 1000, [4, 5], more=1), "", row(7500, 600, [4, 6])
    trace = read(write(tmp_path / "busy.jsonl", *lines))
    assert [request.arrival_s for request in trace.requests] == [0.0, 1.5]
    assert (trace.name, trace.prompt_tokens, trace.working_set_blocks) == ("busy", 1600, 3)
    assert trace.requests[1].blocks == block_hashes(
        (4).to_bytes(4, "little") + (5).to_bytes(4, "little"), 1
    )
    assert trace.faster(2).requests[1].arrival_s == 0.75
    assert len(trace.first(1.5).requests) == 1


def test_gzipped_and_plain_are_one(tmp_path: Path) -> None:
    plain = write(tmp_path / "t.jsonl", row(0, 512, [1]))
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(plain) == read(packed)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", r"t\.jsonl:2: is no line of a Mooncake trace"),
        ('{"timestamp": 1}', r":2: .*missing required field `input_length`"),
        (row(0, 0, []), ":2: input_length must be positive"),
        (row(0, 2000, [1, 2]), ":2: 2000 prompt tokens are 4 blocks of 512, not 2"),
        (row(0, 512, [-1]), ":2: hash_ids must be numbers from 0"),
        (row(0, 512, [2**32]), ":2: hash_ids must be numbers from 0"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(TraceError, match=why):
        read(write(tmp_path / "t.jsonl", row(0, 512, [1]), line))


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read(tmp_path / "absent.jsonl")
    with pytest.raises(TraceError, match="has no requests"):
        read(write(tmp_path / "empty.jsonl"))
    for name, content in ("plain.gz", b"{}"), ("cut.gz", gzip.compress(b"{}" * 99)[:-9]):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceError, match="gzip"):
            read(tmp_path / name)


def test_arrivals_are_spread_over_the_clocks_tick(tmp_path: Path) -> None:
    times_ms = [0, *[3000] * 30, *[9000] * 30]
    trace = read(write(tmp_path / "t.jsonl", *[row(at, 512, [at // 3000]) for at in times_ms]))
    spread = trace.spread(7)
    assert spread == trace.spread(7) != trace.spread(8)
    times = [one.arrival_s for one in spread.requests]
    assert times == sorted(times)
    for at_s in (3.0, 9.0):
        within = [one for one in times if at_s <= one < at_s + 3.0]
        assert len(set(within)) == 30
        assert max(within) - min(within) > 2.0
    at_once = trace._replace(requests=trace.requests[1:31])
    assert at_once.spread(7) == at_once

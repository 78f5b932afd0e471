"""A text trace is read in the order of time; its bound is found by hand and by a search."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.loads import text_trace
from bench.tools.processes import BenchError
from tests.bench.traces import lines


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
    assert text_trace.bound_tokens(map(packed, prompts), 2) == 4 + 2 + 2


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
    assert text_trace.bound_tokens(map(packed, prompts), block) == total


def test_a_trace_is_read_in_the_order_of_time(tmp_path: Path) -> None:
    plain, packed_file = tmp_path / "trace.jsonl", tmp_path / "trace.jsonl.gz"
    plain.write_bytes(lines(6))
    packed_file.write_bytes(gzip.compress(lines(6)))
    turns = text_trace.turns(text_trace.rows(plain), "m", 7)
    assert turns == text_trace.turns(text_trace.rows(packed_file), "m", 7)
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
        text_trace.rows(path)

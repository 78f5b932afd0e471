"""A replay and the same requests over sockets find the same in the caches."""

from pathlib import Path

import pytest

from bench.experiments import replay_sockets
from tests.replay.test_trace import row, write
from tokenlane.replay.trace import Row


def test_a_body_has_the_blocks_of_its_row() -> None:
    short = replay_sockets.body(Row(0, 1000, 0, [4, 5]))
    again = replay_sockets.body(Row(9, 700, 3, [4, 6]))
    first = f'{{"model":"demo","prompt":[{replay_sockets.block_text(4)},'.encode()
    assert short.startswith(first)
    assert again.startswith(first)
    assert short.count(b",") == 1000 - 1 + 4
    assert b'],"max_tokens":3,' in again


@pytest.mark.slow
def test_sockets_and_simulated_time_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_sockets, "CACHE_SHARE", 2.0)  # a replica has room for its prompts
    # Ten conversations of six turns, 20 s apart, interleaved; each turn adds a block.
    lines = [
        row(
            20_000 * turn + 1700 * who,
            512 * (4 + turn),
            [0, *range(100 * who, 100 * who + 3 + turn)],
        )
        for turn in range(6)
        for who in range(1, 11)
    ]
    told = replay_sockets.run(write(tmp_path / "ten.jsonl", *lines), 10, 60)
    assert told["requests"] == 60
    assert told["hit"] > 0.3
    assert abs(told["points_apart"]) < 5

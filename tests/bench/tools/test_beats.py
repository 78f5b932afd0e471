"""A reader of beats knows of every stall, also of one that is not over."""

import struct
from pathlib import Path

import pytest

from bench.tools.beats import Beats
from bench.tools.watched import late


def test_beats_are_read_as_they_are_written(tmp_path: Path) -> None:
    beats = Beats(tmp_path / "beats")
    assert beats.late_s(1.0, 3.0) == [2.0]  # none came at all
    made = [(10.0, 0.0), (10.5, 0.4), (10.9, 0.001), (11.5, 0.6)]
    with (tmp_path / "beats").open("r+b") as file:
        file.write(struct.pack("<q", 4) + b"".join(struct.pack("<dd", *one) for one in made))
    # Due at 10.9: the stall that began in time counts whole.
    assert beats.late_s(10.05, 11.0) == [0.4, 0.001, 0.6]
    # One is still to come, 2 ms after the last.
    assert beats.late_s(11.0, 12.0) == [pytest.approx(0.498)]
    assert beats.late_s(12.0, 13.0) == [1.0]
    found = late([0.4, 0.001, 0.6], wall_s=2.0)
    assert found.blocked == pytest.approx(0.5)
    assert found.max_ms == 600.0
    assert late([], 1.0).p99_ms is None

"""Arrival times are read from a public trace, or made as bursty as it is."""

import gzip
import math
from pathlib import Path

import pytest

from bench.loads import arrival_times
from bench.tools.processes import BenchError
from bench.tools.queueing import gaps_s, variation


def test_made_arrivals_are_as_bursty_as_the_public_ones() -> None:
    made = arrival_times.made()
    assert arrival_times.busiest(made)[1] == arrival_times.PEAK
    assert math.sqrt(variation(gaps_s([one.due_s for one in made])) or 0) == pytest.approx(13, 0.2)
    kept = arrival_times.window(made, 30.0)
    assert arrival_times.busiest(kept)[1] == arrival_times.PEAK
    assert all(0.0 <= one.due_s < 30.0 for one in kept)


def test_arrivals_are_read_from_csv(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    lines = (
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:04.5319600,7,1",
        "2023-11-16 18:17:03.9799600,4808,10",
    )
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    found = arrival_times.read(path)
    assert [one.tokens for one in found] == [4808, 7]
    assert found[1].due_s == pytest.approx(0.552)
    path.write_bytes(b"a,b\n1,2\n")
    with pytest.raises(BenchError, match="TIMESTAMP"):
        arrival_times.read(path)
    path.write_bytes(b"TIMESTAMP,ContextTokens\n")
    with pytest.raises(BenchError, match="no arrivals"):
        arrival_times.read(path)

"""Arrival times of requests: read from a public trace, or made with the same burstiness."""

import csv
import gzip
import io
import random
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from bench.tools.processes import BenchError

PEAK = 67
BURSTS, SILENCE = 200, (0.5, 1.9)


class Arrival(NamedTuple):
    """A request: seconds since the first, and tokens of its prompt."""

    due_s: float
    tokens: int


def read(path: Path) -> list[Arrival]:
    """A CSV of arrivals. Raises BenchError with what is wrong with the file."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
        rows = list(csv.DictReader(io.StringIO(text)))
        # Ten millionths of a second is a digit more than Python reads.
        found = [
            Arrival(datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
                    int(row["ContextTokens"]))
            for row in rows
        ]  # fmt: skip
    except (OSError, ValueError, KeyError) as error:
        raise BenchError(
            f"{path}: is no CSV of arrivals with TIMESTAMP and ContextTokens ({error!r})"
        ) from None
    if not found:
        raise BenchError(f"{path}: holds no arrivals")
    found.sort()
    return [Arrival(one.due_s - found[0].due_s, one.tokens) for one in found]


def made(seed: int = 0) -> list[Arrival]:
    """Bursts of one to 67 requests within a second; between them seconds, at times minutes."""
    chooser = random.Random(seed)
    sizes = [PEAK, *(min(PEAK, 1 + int(chooser.expovariate(1 / 12))) for _ in range(BURSTS))]
    chooser.shuffle(sizes)
    arrivals = []
    at_s = 0.0
    for size in sizes:
        arrivals += [
            Arrival(at_s + chooser.random(), int(min(7_400, chooser.lognormvariate(7.0, 1.2))) + 30)
            for _ in range(size)
        ]
        at_s += 1.0 + chooser.lognormvariate(*SILENCE)
    return sorted(arrivals)


def busiest(arrivals: list[Arrival]) -> tuple[float, int]:
    """When the fullest second begins, and how many it holds."""
    best = (0.0, 0)
    first = 0
    for last, one in enumerate(arrivals):
        while one.due_s - arrivals[first].due_s >= 1.0:
            first += 1
        if last - first + 1 > best[1]:
            best = (arrivals[first].due_s, last - first + 1)
    return best


def window(arrivals: list[Arrival], length_s: float) -> list[Arrival]:
    """The stretch with the busiest second in its middle, from 0 on."""
    at_s, _ = busiest(arrivals)
    since_s = max(0.0, at_s - length_s / 2)
    return [
        Arrival(one.due_s - since_s, one.tokens)
        for one in arrivals
        if since_s <= one.due_s < since_s + length_s
    ]

"""All faults at once, under load: nothing is lost, and the gateway is afterwards what it was.

`make soak MINUTES=30` runs it for so long; without --long it takes a few seconds.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak.report import Report
from tests.soak.run import CACHE_BYTES, Soak

# Once all that is bounded is full: of the least that a process has, and of what it counts itself.
RISING_LIMIT_MB_PER_H = 10.0
# Shorter runs tell how much it rises, and are not judged by it.
JUDGED_MINUTES = 30
# As many as fastokens remembers for each thread.
ENCODER_WORDS = 1_000_000
# What malloc has given out at the end, above what it had at first: those words, and the caches.
HELD_LIMIT_MB = {"supervisor": 5.0, "worker 0": 192.0 + CACHE_BYTES / 1e6 + 20.0}


def _minutes() -> float:
    return float(os.environ.get("SOAK_MINUTES", "30"))


@pytest.mark.row("O9")
@pytest.mark.slow
@pytest.mark.long(limit_s=60 * _minutes() + 1200)
async def test_nothing_is_lost_and_nothing_stays(
    long: bool, figure: Callable[[str], None], tmp_path: Path
) -> None:
    minutes = _minutes() if long else 2 / 60
    form = (
        Soak(tmp_path, 60 * minutes, words=ENCODER_WORDS)
        if long
        else Soak(tmp_path, 60 * minutes, replicas=2, hasty=5.0)
    )
    report = await form.run()
    assert report.problems == []
    assert report.outcomes["whole"] > (0.3 * report.outcomes.total() if long else 10)
    if long:
        rising = {name: report.rising_mb_per_h(name) for name in report.memory}
        _tell(report, minutes, rising, figure)
        judged = minutes >= JUDGED_MINUTES
        assert not judged or max(rising.values()) <= RISING_LIMIT_MB_PER_H, rising
        assert all(report.held_mb(name) < limit for name, limit in HELD_LIMIT_MB.items())


def _tell(
    report: Report, minutes: float, rising: dict[str, float], figure: Callable[[str], None]
) -> None:
    # The audit has seen that those lost were on connections of workers that were killed.
    names = {"lost": "of killed workers"}
    ends = ", ".join(
        f"{count:,} {names.get(name, name)}" for name, count in report.outcomes.most_common()
    )
    figure(f"{minutes:g} minutes: {report.outcomes.total():,} requests ({ends})")
    figure(f"{report.happened.total():,} disturbances of {len(report.happened)} kinds")
    memory = ", ".join(f"{name} {more:+.1f} MB/h" for name, more in rising.items())
    figure(f"memory with trimmed heaps, its minima from the tenth minute on: {memory}")
    held = ", ".join(f"{name} {report.held_mb(name):+.1f} MB" for name in HELD_LIMIT_MB)
    figure(f"held at the end above what was held at first: {held}")

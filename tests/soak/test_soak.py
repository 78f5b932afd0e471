"""All faults at once, under load: nothing is lost, and the gateway is afterwards what it was.

`make soak MINUTES=30` runs it for so long; without --long it takes a few seconds.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak.report import Report
from tests.soak.run import CACHE_BYTES, Soak

# fastokens remembers words, up to 192 MB of the crowd's hostile ones,
# and is still about it in the later two thirds.
GROWTH_LIMIT_MB = {"supervisor": 5.0, "worker": 150.0}
# What malloc has given out at the end, above what it had at first: those words, and the caches.
HELD_LIMIT_MB = {"supervisor": 5.0, "worker 0": 192.0 + CACHE_BYTES / 1e6 + 20.0}


def _minutes() -> float:
    return float(os.environ.get("SOAK_MINUTES", "30"))


@pytest.mark.row("O9")
@pytest.mark.slow
@pytest.mark.long(limit_s=60 * _minutes() + 600)
async def test_nothing_is_lost_and_nothing_stays(
    long: bool, figure: Callable[[str], None], tmp_path: Path
) -> None:
    minutes = _minutes() if long else 2 / 60
    form = (
        Soak(tmp_path, 60 * minutes)
        if long
        else Soak(tmp_path, 60 * minutes, replicas=2, hasty=5.0)
    )
    report = await form.run()
    assert report.problems == []
    assert report.outcomes["whole"] > (0.3 * report.outcomes.total() if long else 10)
    if long:
        growths = {name: report.growth_mb(name) for name in report.memory}
        _tell(report, minutes, growths, figure)
        assert all(growths[name] < limit for name, limit in GROWTH_LIMIT_MB.items())
        assert all(report.held_mb(name) < limit for name, limit in HELD_LIMIT_MB.items())


def _tell(
    report: Report, minutes: float, growths: dict[str, float], figure: Callable[[str], None]
) -> None:
    # The audit has seen that those lost were on connections of workers that were killed.
    names = {"lost": "of killed workers"}
    ends = ", ".join(
        f"{count:,} {names.get(name, name)}" for name, count in report.outcomes.most_common()
    )
    figure(f"{minutes:g} minutes: {report.outcomes.total():,} requests ({ends})")
    figure(f"{report.happened.total():,} disturbances of {len(report.happened)} kinds")
    memory = ", ".join(f"{name} {growth:+.1f} MB" for name, growth in growths.items())
    figure(f"memory in the later two thirds: {memory}")
    held = ", ".join(f"{name} {report.held_mb(name):+.1f} MB" for name in HELD_LIMIT_MB)
    figure(f"held at the end above what was held at first: {held}")

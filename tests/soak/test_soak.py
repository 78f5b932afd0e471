"""All faults at once, under load: nothing is lost, and the gateway is afterwards what it was.

`make soak MINUTES=30` runs it for so long; without --long it takes a few seconds.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak.run import Report, Soak

SLOPE_LIMIT_MB_PER_H = 20.0


def _minutes() -> float:
    return float(os.environ.get("SOAK_MINUTES", "30"))


@pytest.mark.row("O9")
@pytest.mark.slow
@pytest.mark.long(limit_s=60 * _minutes() + 600)
async def test_nothing_is_lost_and_nothing_stays(
    long: bool, figure: Callable[[str], None], tmp_path: Path
) -> None:
    minutes = _minutes() if long else 2 / 60
    soak = Soak(tmp_path, 60 * minutes, replicas=4 if long else 2, hasty=1.0 if long else 5.0)
    report = await soak.run()
    assert report.problems == []
    assert report.outcomes["whole"] > (0.3 * report.outcomes.total() if long else 10)
    if long:
        slopes = {name: report.slope_mb_per_h(name) for name in report.memory}
        _tell(report, minutes, slopes, figure)
        assert max(slopes.values()) < SLOPE_LIMIT_MB_PER_H


def _tell(
    report: Report, minutes: float, slopes: dict[str, float], figure: Callable[[str], None]
) -> None:
    ends = ", ".join(f"{count:,} {name}" for name, count in report.outcomes.most_common())
    figure(f"{minutes:g} minutes: {report.outcomes.total():,} requests ({ends})")
    figure(f"{report.happened.total():,} disturbances of {len(report.happened)} kinds")
    memory = ", ".join(f"{name} {slope:+.1f} MB/h" for name, slope in slopes.items())
    figure(f"memory in the later two thirds: {memory}")

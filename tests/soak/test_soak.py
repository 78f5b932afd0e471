"""All faults at once, under load: nothing is lost, and the gateway is afterwards what it was.

`make soak MINUTES=30` runs it for so long; without --long it takes a few seconds.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak.report import Report
from tests.soak.run import Soak

# fastokens remembers words, up to about 130 MB of them, and fills that within the soak.
GROWTH_LIMIT_MB = {"supervisor": 20.0, "worker": 150.0}


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


def _tell(
    report: Report, minutes: float, growths: dict[str, float], figure: Callable[[str], None]
) -> None:
    ends = ", ".join(f"{count:,} {name}" for name, count in report.outcomes.most_common())
    figure(f"{minutes:g} minutes: {report.outcomes.total():,} requests ({ends})")
    figure(f"{report.happened.total():,} disturbances of {len(report.happened)} kinds")
    memory = ", ".join(f"{name} {growth:+.1f} MB" for name, growth in growths.items())
    figure(f"memory in the later two thirds: {memory}")

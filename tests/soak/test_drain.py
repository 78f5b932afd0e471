"""Gateways take over from each other under load, and no request is lost.

`make drain` does it 200 times (DRAINS=N: N times).
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak.drain import drains


@pytest.mark.row("O7")
@pytest.mark.slow
@pytest.mark.long(limit_s=3 * 3600)
async def test_no_request_is_lost_when_one_takes_over_from_another(
    long: bool, figure: Callable[[str], None], tmp_path: Path
) -> None:
    count = int(os.environ.get("DRAINS", "200")) if long else 1
    told = await drains(tmp_path, count, workers=2 if long else 1)
    assert told.problems == []
    assert set(told.outcomes) == {"whole"}
    assert max(told.drains_s) < 10, "an idle connection holds nobody up"
    assert told.in_hand > 0 or count == 1
    figure(
        f"{count} drains under load in {told.took_s / 60:.1f} minutes, "
        f"{told.outcomes.total():,} requests, 0 lost, {told.in_hand:,} of them under way as a "
        f"drain began; the longest took {max(told.drains_s):.1f} s"
    )

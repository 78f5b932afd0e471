"""The cache study counts lookups by kind."""

import pytest

from bench.loads.conversations import Asked
from bench.studies.cache import NEW, SYSTEM, TAGS, Lookups


def test_lookups_by_kind() -> None:
    lookups = Lookups()
    talk = [("system", "s"), ("user", "u1")]
    lookups.request(Asked("x", talk))
    lookups.request(Asked("x", [*talk, ("assistant", "a"), ("user", "u2")]))
    assert lookups.rate(TAGS) == pytest.approx(3 / 6)
    assert lookups.rate(SYSTEM) == pytest.approx(1 / 2)
    assert lookups.rate(NEW) == 0.0
    assert 0.0 < lookups.rate_of_text < 1.0

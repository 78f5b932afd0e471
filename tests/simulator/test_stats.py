"""Counts as vLLM has them."""

import pytest

from tokenlane.simulator.stats import SimulatedHistogram, token_bounds


def test_bounds_are_inclusive_and_the_last_is_open() -> None:
    histogram = SimulatedHistogram("A number.", (1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 14.0)


@pytest.mark.parametrize(
    ("most", "bounds"),
    [(1, [1]), (30, [1, 2, 5, 10, 20]), (500, [1, 2, 5, 10, 20, 50, 100, 200, 500])],
)
def test_token_bounds(most: int, bounds: list[int]) -> None:
    assert list(token_bounds(most)) == bounds

"""Quantiles are measured values, and nothing is never zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.tools.statistics import Cell, cell, median, quantile, ratio, table


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([3.0], 0.0, 3.0),
        ([3.0], 1.0, 3.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([4.0, 3.0, 2.0, 1.0], 0.75, 3.0),
        ([1.0, 2.0, 3.0, 4.0], 0.99, 4.0),
    ],
)
def test_quantile(values: list[float], share: float, expected: float | None) -> None:
    assert quantile(values, share) == expected


@given(st.lists(st.floats(0, 1e9), min_size=1), st.floats(0, 1))
def test_a_quantile_was_measured_and_covers_its_share(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


@pytest.mark.parametrize(
    ("values", "expected"), [([], None), ([1.0], 1.0), ([9.0, 1.0, 5.0], 5.0), ([4.0, 2.0], 3.0)]
)
def test_median(values: list[float], expected: float | None) -> None:
    assert median(values) == expected


def test_a_ratio_to_nothing_is_nothing() -> None:
    assert ratio(1.0, 0.0) is None
    assert ratio(None, 1.0) is None
    assert ratio(3.0, 2.0) == 1.5


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0"), (12345.6, "12,346"), (1.234, "1.23"), (0.01234, "0.0123"), (7, "7")],
)
def test_cell(value: Cell, text: str) -> None:
    assert cell(value) == text


def test_table_keeps_columns_apart() -> None:
    assert table(["name", "n"], [["a", 1], ["long", 1000]]).splitlines() == [
        "name      n",
        "----  -----",
        "a         1",
        "long  1,000",
    ]

"""Small statistics and tables. Pure.

Invariants:
- A quantile is a value that was measured (nearest rank), never an interpolation.
- No data is None, and prints as a dash; it is never 0.
"""

import math
from collections.abc import Sequence

Cell = str | float | int | None


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest measured value that at least `share` (0..1) of the values do not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float | None:
    """The middle value, or the mean of the two middle ones."""
    if not values:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def ratio(value: float | None, base: float | None) -> float | None:
    """value / base, or None where it has no meaning."""
    if value is None or base is None or base == 0:
        return None
    return value / base


def minus(value: float | None, base: float | None) -> float | None:
    """value - base, or None where one is missing."""
    return None if value is None or base is None else value - base


def cell(value: Cell) -> str:
    """Three significant digits for a float, a dash for nothing."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if value == 0 or not math.isfinite(value):
            return f"{value:g}"
        decimals = max(0, 2 - math.floor(math.log10(abs(value))))
        return f"{value:,.{min(decimals, 4)}f}"
    return f"{value:,}" if isinstance(value, int) else value


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Text columns: the first to the left, numbers to the right."""
    texts = [list(header), *([cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(header))]
    lines = [
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)

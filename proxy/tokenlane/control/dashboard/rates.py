"""What counters did between two readings: rates, shares, quantiles. Pure.

Invariants:
- A family or label that is not there counts as nothing: whoever shows a number need not know
  which version of the gateway counted it.
- Counters never go back here: a child that did (it cannot, see exposition.Totals) grew by 0.
- A quantile of nothing is None, never 0.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tokenlane.telemetry.metrics.families import BY_NAME

Cells = Mapping[tuple[str, tuple[str, ...]], Sequence[float]]
# A child's labels, and how much its cells grew.
Row = tuple[dict[str, str], list[float]]


class Reading(msgspec.Struct, frozen=True):
    """All children's cells at one time (monotonic seconds)."""

    at_s: float
    cells: Cells


class Spread:
    """A histogram's observations in a window. bounds: upper ones, ascending, without +Inf."""

    def __init__(self, bounds: Sequence[float], counts: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = counts
        self.count = sum(counts)

    def quantile(self, share: float) -> float | None:
        """Interpolated inside its bucket, as Prometheus does; above the last bound, that."""
        if not self.count:
            return None
        rank, below = share * self.count, 0.0
        floor = 0.0
        for bound, count in zip(self._bounds, self._counts):
            if count and below + count >= rank:
                return floor + (bound - floor) * max(rank - below, 0.0) / count
            below += count
            floor = bound
        return floor


_NOTHING = Spread((), ())


class Window:
    """What was counted from `old` to `new`. span_s: how long that is."""

    def __init__(self, old: Reading, new: Reading) -> None:
        self.span_s = max(new.at_s - old.at_s, 1e-9)
        self._now = new.cells
        self._grown: dict[str, list[Row]] = {}
        self._by_value: dict[tuple[str, str], dict[str, list[Row]]] = {}
        for (name, values), cells in new.cells.items():
            family = BY_NAME.get(name)
            if family is None or family.kind == "gauge":
                continue
            before = old.cells.get((name, values))
            grown = (
                list(cells) if before is None else [max(a - b, 0.0) for a, b in zip(cells, before)]
            )
            labels = dict(zip(family.labels, values))
            self._grown.setdefault(name, []).append((labels, grown))

    def rows(self, name: str, **labels: str) -> Iterator[Row]:
        """Yield the children with these labels: all labels of each, and how much its cells grew."""
        found = self._grown.get(name, [])
        for label, value in labels.items():
            fewer = self._valued(name, label).get(value, [])
            found = min(found, fewer, key=len)
        for given, grown in found:
            if all(given.get(label) == value for label, value in labels.items()):
                yield given, grown

    def _valued(self, name: str, label: str) -> dict[str, list[Row]]:
        """Return a family's children by the value of a label: of hundreds of replicas each is asked
        for."""
        by_value = self._by_value.get((name, label))
        if by_value is None:
            by_value = self._by_value[name, label] = {}
            for row in self._grown.get(name, ()):
                if label in row[0]:
                    by_value.setdefault(row[0][label], []).append(row)
        return by_value

    def count(self, name: str, **labels: str) -> float:
        """How much a counter grew, over all children with these labels."""
        return sum(grown[0] for _, grown in self.rows(name, **labels))

    def per_s(self, name: str, **labels: str) -> float:
        """The same by the second."""
        return self.count(name, **labels) / self.span_s

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """How much a counter grew, over all children with these labels, by the values of one."""
        sums: dict[str, float] = {}
        for given, grown in self.rows(name, **labels):
            key = given.get(label)
            if key is not None:
                sums[key] = sums.get(key, 0.0) + grown[0]
        return sums

    def spread(self, name: str, **labels: str) -> Spread:
        """A histogram's observations, over all children with these labels."""
        family = BY_NAME.get(name)
        rows = [grown for _, grown in self.rows(name, **labels)]
        if family is None or not rows:
            return _NOTHING
        _, *counts = (sum(column) for column in zip(*rows))
        return Spread(family.buckets, counts)

    def values(self, name: str, label: str) -> list[str]:
        """The values of a label that were ever counted, sorted."""
        return sorted({given[label] for given, _ in self.rows(name) if label in given})

    def gauges(self, name: str) -> Iterator[tuple[tuple[str, ...], float]]:
        """Each child of a gauge now, by its labels' values."""
        return ((values, cells[0]) for (given, values), cells in self._now.items() if given == name)

    def total(self, name: str, **labels: str) -> float:
        """A counter since the start, or a gauge now."""
        family = BY_NAME.get(name)
        if family is None:
            return 0.0
        wanted = [(family.labels.index(label), value) for label, value in labels.items()]
        return sum(
            cells[0]
            for (given, values), cells in self._now.items()
            if given == name and all(values[place] == value for place, value in wanted)
        )


def short(value: float | None) -> float | None:
    """Four digits: a picture shows no more."""
    return None if value is None else float(f"{value:.4g}")


def ratio(part: float, whole: float) -> float | None:
    """part / whole; None of nothing."""
    return part / whole if whole > 0 else None

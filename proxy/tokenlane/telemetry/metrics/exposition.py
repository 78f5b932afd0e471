"""What `/metrics` says: the workers' segments summed, plus what the control plane knows.

Invariants:
- Counters and histograms never go back: a dead worker's are kept in `retired`, folded once.
- Gauges of dead workers vanish.
- Memory is bounded by the families' label limits, not by how often workers died.
"""

import math
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tokenlane.telemetry.metrics.families import FAMILIES, OTHER
from tokenlane.telemetry.metrics.family import Family
from tokenlane.telemetry.metrics.segment import Sample, SegmentReader

Cells = dict[tuple[str, tuple[str, ...]], list[float]]


def _add(cells: Cells, samples: Iterable[Sample], *, gauges: bool) -> None:
    for family, labels, values in samples:
        if family.kind == "gauge" and not gauges:
            continue
        key = (family.name, labels)
        have = cells.get(key)
        if have is None:
            # Overflow children exist from the start: shown only once something fell into one.
            if any(values) or not labels or labels != (OTHER,) * len(labels):
                cells[key] = list(values)
        else:
            for index, value in enumerate(values):
                have[index] += value


class Totals:
    """The sum over all segments that ever were, one live segment per worker number."""

    def __init__(self) -> None:
        self._live: dict[int, SegmentReader] = {}
        self._retired: Cells = {}

    def adopt(self, worker: int, descriptor: int) -> None:
        """Reads this worker's segment from now on. The descriptor may be closed afterwards."""
        self.retire(worker)
        self._live[worker] = SegmentReader(descriptor)

    def retire(self, worker: int) -> None:
        """Folds a dead worker's counts in; its gauges are forgotten."""
        reader = self._live.pop(worker, None)
        if reader is not None:
            _add(self._retired, reader.samples(), gauges=False)
            reader.close()

    def cells(self) -> Cells:
        """Every child's cells, summed."""
        cells = {key: list(values) for key, values in self._retired.items()}
        for reader in self._live.values():
            _add(cells, reader.samples(), gauges=True)
        return cells


def metric(family: Family, children: Iterable[tuple[tuple[str, ...], list[float]]]) -> Metric:
    """One family in prometheus_client's words, children in the order of their labels."""
    if family.kind != "histogram":
        kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        simple = kind(family.name, family.help, labels=family.labels)
        for labels, cells in sorted(children):
            simple.add_metric(labels, cells[0])
        return simple
    histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    # The library's own spelling of `le`, which it does not type.
    bounds = [floatToGoString(bound) for bound in (*family.buckets, math.inf)]  # type: ignore[no-untyped-call]
    for labels, (total, *counts) in sorted(children):
        running = 0.0
        buckets = []
        for bound, count in zip(bounds, counts, strict=True):
            running += count
            buckets.append((bound, running))
        histogram.add_metric(labels, buckets, sum_value=total)
    return histogram


class GatewayCollector(Collector):
    """Everything the gateway exports. `control`: samples of the control plane's own families."""

    def __init__(self, totals: Totals, control: Callable[[], Iterable[Sample]]) -> None:
        self._totals = totals
        self._control = control

    def collect(self) -> Iterator[Metric]:
        cells = self._totals.cells()
        _add(cells, self._control(), gauges=True)
        children: dict[str, list[tuple[tuple[str, ...], list[float]]]] = {}
        for (name, labels), values in cells.items():
            children.setdefault(name, []).append((labels, values))
        for family in FAMILIES:
            yield metric(family, children.get(family.name, ()))

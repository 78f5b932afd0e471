"""What `/metrics` says: the workers' segments summed, plus what the control plane knows.

Invariants:
- Counters and histograms never go back: a dead worker's are kept in `retired`, folded once.
- Gauges of dead workers vanish.
- Memory is bounded by the families' label limits, not by how often workers died.
- A label that departed is not shown, however long a worker still has it.
"""

from collections.abc import Callable, Iterable
from itertools import accumulate

from tokenlane.telemetry.metrics.departures import KEPT_S, SHOWN_S, Departures, Label, Labels
from tokenlane.telemetry.metrics.families import BY_NAME, FAMILIES, OTHER
from tokenlane.telemetry.metrics.family import Family
from tokenlane.telemetry.metrics.segment import Sample, SegmentReader

# Prometheus' text format, which every scraper reads.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Long enough for every worker to release the label.
HIDDEN_S = 2 * (KEPT_S - SHOWN_S)
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

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
        self._departures = Departures(SHOWN_S)
        # The time since when it is hidden.
        self._hidden_s: dict[Label, float] = {}

    def adopt(self, worker: int, descriptor: int) -> None:
        """Read this worker's segment from now on. The descriptor may be closed afterwards."""
        self.retire(worker)
        self._live[worker] = SegmentReader(descriptor)

    def retire(self, worker: int) -> None:
        """Add a dead worker's counts to the totals and drop its gauges."""
        reader = self._live.pop(worker, None)
        if reader is not None:
            _add(self._retired, self._shown(reader), gauges=False)
            reader.close()

    def follow(self, present: Labels, now_s: float) -> None:
        """Hide labels that have departed; called about once a second. present: the labels in
        use."""
        gone = self._departures.tick(present, now_s)
        hidden_s = self._hidden_s | dict.fromkeys(gone, now_s)
        self._hidden_s = {
            label: since_s
            for label, since_s in hidden_s.items()
            if now_s - since_s < HIDDEN_S and label not in present
        }
        for name, labels in list(self._retired) if gone else ():
            if BY_NAME[name].has_any(labels, gone):
                del self._retired[name, labels]

    def _shown(self, reader: SegmentReader) -> list[Sample]:
        hidden = self._hidden_s.keys()
        return [
            (family, labels, values)
            for family, labels, values in reader.samples()
            if not hidden or not family.has_any(labels, hidden)
        ]

    def cells(self) -> Cells:
        """Return every child's cells, summed."""
        cells = {key: list(values) for key, values in self._retired.items()}
        for reader in self._live.values():
            _add(cells, self._shown(reader), gauges=True)
        return cells


def _labels(family: Family, values: tuple[str, ...], *more: str) -> str:
    """Return the labels of a line, in braces, by their names as Prometheus' own clients do."""
    pairs = sorted(
        f'{label}="{value.translate(_ESCAPES)}"'
        for label, value in zip(family.labels, values, strict=True)
    )
    return f"{{{','.join([*pairs, *more])}}}" if pairs or more else ""


def _beginnings(family: Family, values: tuple[str, ...]) -> list[str]:
    """Return what a child's lines begin with: a histogram has one for each bucket, then its count
    and its sum."""
    labels = _labels(family, values)
    if family.kind != "histogram":
        return [f"{family.name}{labels} "]
    bounds = [*map(repr, family.buckets), "+Inf"]
    buckets = [_labels(family, values, f'le="{bound}"') for bound in bounds]
    return [
        *(f"{family.name}_bucket{bucket} " for bucket in buckets),
        f"{family.name}_count{labels} ",
        f"{family.name}_sum{labels} ",
    ]


def _cumulative(total: float, *counts: float) -> list[float]:
    """Return the numbers of a histogram's lines, in their order."""
    running = list(accumulate(counts))
    return [*running, running[-1], total]


class Exposition:
    """Everything the gateway exports. `control`: samples of the control plane's own families."""

    def __init__(self, totals: Totals, control: Callable[[], Iterable[Sample]]) -> None:
        self._totals = totals
        self._control = control
        # Lines change only in their numbers from one scrape to the next.
        self._beginnings: dict[tuple[str, tuple[str, ...]], list[str]] = {}

    def text(self) -> bytes:
        """Return the page as it is now."""
        cells = self._totals.cells()
        _add(cells, self._control(), gauges=True)
        children: dict[str, list[tuple[tuple[str, ...], list[float]]]] = {}
        for (name, labels), values in cells.items():
            children.setdefault(name, []).append((labels, values))
        known, self._beginnings = self._beginnings, {}
        lines = []
        for family in FAMILIES:
            lines.append(f"# HELP {family.name} {family.help}\n")
            lines.append(f"# TYPE {family.name} {family.kind}\n")
            for labels, values in sorted(children.get(family.name, ())):
                key = family.name, labels
                beginnings = self._beginnings[key] = known.get(key) or _beginnings(family, labels)
                numbers = _cumulative(*values) if family.kind == "histogram" else values
                lines += [f"{begin}{value}\n" for begin, value in zip(beginnings, numbers)]
        return "".join(lines).encode()

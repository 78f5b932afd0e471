"""Each replica's flow over the last hour: requests, failures, first tokens, hits. Pure.

Invariants:
- Memory is bounded: POINTS of each of REPLICA_LIMIT replicas; a replica that left takes its own.
- The newest points of all replicas are of the same time; a replica that came later has fewer.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from tokenlane.control.dashboard.live import Flow, Hour
from tokenlane.control.dashboard.rates import Reading, Window, ratio, short
from tokenlane.telemetry.metrics import families

PERIOD_S = 30.0
POINTS = 120
REPLICA_LIMIT = 256

# By replica, prompt tokens that it found in its cache and that it computed, both only growing.
Tokens = Mapping[str, tuple[float, float]]


class Flows:
    """The flows. reading: where the first period begins."""

    def __init__(self, reading: Reading) -> None:
        self._last = reading
        self._tokens: Tokens = {}
        self._flows: dict[str, Flow] = {}

    def see(self, reading: Reading, tokens: Tokens, replicas: Iterable[str]) -> None:
        """Add a point to the flow of each of the replicas (ids), where a period has passed."""
        if round(reading.at_s - self._last.at_s) < PERIOD_S:
            return
        window = Window(self._last, reading)
        requests = window.by(families.REPLICA_REQUESTS.name, "replica")
        failures = window.by(families.UPSTREAM_FAILURES.name, "replica")
        before, self._flows = self._flows, {}
        for name in islice(replicas, REPLICA_LIMIT):
            flow = self._flows[name] = before.get(name) or Flow()
            found, computed = tokens.get(name, (0.0, 0.0))
            old_found, old_computed = self._tokens.get(name, (found, computed))
            found, computed = found - old_found, computed - old_computed
            for points, value in (
                (flow.requests_per_s, requests.get(name, 0.0) / window.span_s),
                (flow.failed_per_s, failures.get(name, 0.0) / window.span_s),
                (flow.ttft_p50_s, window.spread(families.TTFT.name, replica=name).quantile(0.5)),
                (flow.hit_rate, ratio(found, found + computed)),
            ):
                points.append(short(value))
                del points[:-POINTS]
        self._last, self._tokens = reading, tokens

    def hour(self) -> Hour:
        """Return what the page shows of it."""
        return Hour(period_s=PERIOD_S, flows=self._flows)

"""Which metrics an expression asks for, and which of them are not exported yet."""

import re

from proxy.telemetry.families import BY_NAME

_MONITOR = {
    "tokenlane_loop_stalls_total",
    "tokenlane_loop_stall_cause_seconds_total",
    "tokenlane_stall_monitor_cpu_seconds_total",
}
# Panels of the stall monitor are declared; their metrics come with it.
NEEDS_STALL_MONITOR = frozenset(_MONITOR - BY_NAME.keys())


def metrics_in(expr: str) -> set[str]:
    """Names of our metrics and recorded series in a PromQL expression."""
    return set(re.findall(r"\b(?:[a-z_]+:)?tokenlane_[a-z0-9_]+(?::\w+)?", expr))

"""A real Prometheus scrapes a real gateway under load: what it then knows is what was sent."""

import math
from collections import Counter
from pathlib import Path

import pytest

from bench.loads.scene import CUT, Load, kill_worker, scene
from bench.tools.prometheus import Prometheus, available
from bench.tools.systems import Proxy
from scripts.dashboard.boards import BOARDS
from tests.deploy.rules import alerts
from tokenlane.telemetry.metrics.families import OTHER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="prometheus is not installed (Debian: prometheus)"),
]
WINDOW = "10s"
# 3 scrapes are 2 steps of every rate; more leave room for a busy machine.
SCRAPES = 6
# Where the load's chance and a busy machine leave a panel empty at first.
MORE_SCRAPES = 100
ROUTES = {"/v1/none-such": OTHER}


def counted(prometheus: Prometheus) -> dict[tuple[str, int], int]:
    """Requests by route and status, as Prometheus knows them."""
    prometheus.wait_scrape()
    samples = prometheus.query("sum by (route, status) (tokenlane_requests_total) > 0")
    return {
        (one.labels["route"], int(one.labels["status"])): int(one.values[0][1]) for one in samples
    }


def sent(load: Load) -> dict[tuple[str, int], int]:
    """Requests by route and status, as the load generator knows them."""
    counts: Counter[tuple[str, int]] = Counter()
    for (path, status), count in load.sent.items():
        counts[ROUTES.get(path, path), status] += count
    return dict(counts)


def steps_back(prometheus: Prometheus) -> list[str]:
    """Cumulative series that ever fell, as scraped."""
    everything = prometheus.query('{__name__=~"tokenlane_.*_(total|count|sum|bucket)"}[10m]')
    assert len(everything) > 200
    return [
        f"{one.labels['__name__']}{one.labels}"
        for one in everything
        if any(after[1] < before[1] for before, after in zip(one.values, one.values[1:]))
    ]


def empty_panels(prometheus: Prometheus) -> list[str]:
    """Queries of the boards that return nothing, or nothing but NaN."""
    empty = []
    for panel in (panel for board in BOARDS.values() for panel in board.panels()):
        for query in panel.queries:
            expr = query.expr.replace("$__rate_interval", WINDOW).replace("$instance", ".*")
            found = prometheus.query(expr)
            if not any(math.isfinite(one.values[0][1]) for one in found):
                empty.append(f"{panel.title}: {expr}")
    return empty


def fill_panels(prometheus: Prometheus) -> None:
    """Waits, scrape by scrape, until no panel is empty, or no longer."""
    for _ in range(MORE_SCRAPES):
        if not empty_panels(prometheus):
            return
        prometheus.wait_scrape()


def rules_work(prometheus: Prometheus) -> None:
    """All that is shipped is loaded, and none of it fails."""
    groups = prometheus.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules if rule["type"] == "alerting"} == set(alerts())
    assert [rule["lastError"] for rule in rules if rule.get("lastError")] == []
    assert {rule["health"] for rule in rules} == {"ok"}
    # The scene has a replica with another template: this one needs no patience.
    firing = {one.labels["alertname"] for one in prometheus.query('ALERTS{alertstate="firing"}')}
    assert "TokenlaneTokenMismatch" in firing


def killed_at_rest(proxy: Proxy, load: Load, prometheus: Prometheus) -> None:
    """Totals are what was sent, before and after a worker's death."""
    assert counted(prometheus) == sent(load)
    kill_worker(proxy, 0)
    with load.running(1.0):
        pass
    assert counted(prometheus) == sent(load)
    assert steps_back(prometheus) == []


def killed_under_load(proxy: Proxy, load: Load, prometheus: Prometheus) -> None:
    """No counter goes back, and no answer is forgotten but those that were just out."""
    before = sum(load.sent.values())
    with load.running(1.0):
        kill_worker(proxy, 1)
    total = sum(load.sent.values())
    assert total > before
    answered = total - sum(count for (_, status), count in load.sent.items() if status == CUT)
    # Of the answers that were just out when the worker died, each client may have had one.
    assert answered - load.clients <= sum(counted(prometheus).values()) <= total
    assert steps_back(prometheus) == []
    (restarts,) = prometheus.query("tokenlane_worker_restarts_total")
    assert restarts.values[0][1] >= 1


@pytest.mark.timeout(240)
# One test: the scene takes seconds to set, and what it shows builds on what came before.
def test_prometheus_knows_what_was_sent_and_never_less(tmp_path: Path) -> None:
    with scene(tmp_path) as (proxy, load):
        assert proxy.admin_port is not None
        with Prometheus([proxy.admin_port]) as prometheus:
            with load.running():
                prometheus.wait_scrapes(SCRAPES)
                fill_panels(prometheus)
            assert empty_panels(prometheus) == []
            rules_work(prometheus)
            killed_at_rest(proxy, load, prometheus)
            killed_under_load(proxy, load, prometheus)

"""The dashboards: their files are written from the panels, and they ask for what is exported."""

import json
import re

import pytest

from scripts.dashboard.boards import BOARDS
from scripts.dashboard.grafana import text
from scripts.dashboard.panel import Panel
from tests.deploy.rules import recorded
from tests.deploy.scope import metrics_in
from tests.paths import ROOT
from tokenlane.telemetry.metrics.families import BY_NAME, FAMILIES

FOLDER = ROOT / "deploy" / "grafana"
PANELS = [
    pytest.param(panel, id=f"{name}: {panel.title}")
    for name, board in BOARDS.items()
    for panel in board.panels()
]


def test_files_are_up_to_date() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == set(BOARDS)
    for name, board in BOARDS.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text(board), "run: make dashboards"


@pytest.mark.parametrize("panel", PANELS)
def test_panel_asks_for_what_is_exported(panel: Panel) -> None:
    for query in panel.queries:
        names = metrics_in(query.expr)
        assert names
        for name in names:
            family = BY_NAME.get(re.sub(r"_(bucket|count|sum)$", "", name)) or BY_NAME.get(name)
            assert family is not None or name in recorded(), f"nobody exports {name}"
        for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
            assert re.search(rf"by \([^)]*\b{label}\b", query.expr) or ":" in query.expr


# What every gateway reads of the same replica.
TOLD_BY_REPLICAS = {
    "tokenlane_replica_running_requests", "tokenlane_replica_waiting_requests",
    "tokenlane_replica_kv_usage_ratio", "tokenlane_replica_front_end_starved",
    "tokenlane_kv_blocks", "tokenlane_kv_events_total", "tokenlane_kv_event_gaps_total",
    "tokenlane_kv_event_messages_lost_total", "tokenlane_kv_event_lag_seconds",
    "tokenlane_kv_event_standing_info",
}  # fmt: skip


def test_what_replicas_tell_is_not_multiplied_by_the_number_of_gateways() -> None:
    exprs = [
        query.expr
        for board in BOARDS.values()
        for panel in board.panels()
        for query in panel.queries
        if metrics_in(query.expr) & TOLD_BY_REPLICAS
    ]
    assert set().union(*map(metrics_in, exprs)) >= TOLD_BY_REPLICAS
    assert [expr for expr in exprs if not expr.startswith("max by (replica")] == []


@pytest.mark.parametrize("panel", PANELS)
def test_panel_explains_itself(panel: Panel) -> None:
    assert panel.help.endswith(".")
    assert 1 <= panel.width <= 24
    assert panel.kind != "heatmap" or len(panel.queries) == 1
    assert [step for step in panel.steps if step[0] is None] == list(panel.steps[:1])


def test_every_family_is_on_a_board() -> None:
    rules = " ".join(recorded().values())
    shown = " ".join(
        query.expr
        for board in BOARDS.values()
        for panel in board.panels()
        for query in panel.queries
    )
    asked = metrics_in(rules) | metrics_in(shown)
    bases = asked | {re.sub(r"_(bucket|count|sum)$", "", name) for name in asked}
    missing = {family.name for family in FAMILIES} - bases
    assert missing <= {"tokenlane_build_info"}  # the board's list of gateways comes from it


@pytest.mark.parametrize("name", BOARDS)
def test_layout_has_no_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((FOLDER / name).read_text(encoding="utf-8"))["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_ids_are_unique() -> None:
    assert len({board.uid for board in BOARDS.values()}) == len(BOARDS)
    for name in BOARDS:
        panels = json.loads((FOLDER / name).read_text(encoding="utf-8"))["panels"]
        ids = [panel["id"] for panel in panels]
        assert len(set(ids)) == len(ids)

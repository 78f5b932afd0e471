"""Boards in Grafana's JSON (schema 39: Grafana 10.4 and later). Pure."""

import json
from typing import Any

from scripts.dashboard.panel import Board, Panel, Row

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HEIGHTS = {"stat": 4, "timeseries": 8, "heatmap": 8}
_COLUMNS = 24


def _target(panel: Panel, number: int) -> dict[str, Any]:
    query = panel.queries[number]
    return {
        "datasource": _SOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "format": "heatmap" if panel.kind == "heatmap" else "time_series",
        "legendFormat": query.legend or "__auto",
        "range": True,
        "refId": chr(ord("A") + number),
    }


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """The queries that are drawn against an axis on the right."""
    return [
        {
            "matcher": {"id": "byFrameRefID", "options": chr(ord("A") + number)},
            "properties": [
                {"id": "unit", "value": query.right_unit},
                {"id": "custom.axisPlacement", "value": "right"},
                {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
            ],
        }
        for number, query in enumerate(panel.queries)
        if query.right_unit is not None
    ]


def _field_config(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.steps:
        steps = [{"value": value, "color": color} for value, color in panel.steps]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 25 if panel.stacked else 0,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "dashed" if panel.steps else "off"},
        }
    return {"defaults": defaults, "overrides": _overrides(panel)}


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {
            "colorMode": "value",
            "graphMode": "area",
            "reduceOptions": {"calcs": ["lastNotNull"]},
        }
    if panel.kind == "heatmap":
        return {
            "calculate": False,
            "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
            "yAxis": {"unit": panel.unit},
        }
    return {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": _HEIGHTS[panel.kind]},
        "fieldConfig": _field_config(panel),
        "options": _options(panel),
        "targets": [_target(panel, one) for one in range(len(panel.queries))],
    }


def _row(row: Row, number: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
        "panels": [],
    }


def _laid_out(board: Board) -> list[dict[str, Any]]:
    """Rows and panels, left to right, wrapped at 24 columns."""
    made: list[dict[str, Any]] = []
    y = 0
    for row in board.rows:
        made.append(_row(row, len(made) + 1, y))
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > _COLUMNS:
                x, y, height = 0, y + height, 0
            made.append(_panel(panel, len(made) + 1, x, y))
            x, height = x + panel.width, max(height, _HEIGHTS[panel.kind])
        y += height
    return made


def _variables() -> list[dict[str, Any]]:
    instances = "label_values(tokenlane_build_info, instance)"
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "instance",
            "label": "gateway",
            "type": "query",
            "datasource": _SOURCE,
            "definition": instances,
            "query": {"query": instances, "refId": "instances"},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def text(board: Board) -> str:
    """The file of a board."""
    made = {
        "uid": board.uid,
        "title": board.title,
        "tags": ["tokenlane"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one crosshair in all panels: what moves together is seen together
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards",
                "title": "tokenlane",
                "tags": ["tokenlane"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "panels": _laid_out(board),
    }
    return json.dumps(made, indent=2) + "\n"

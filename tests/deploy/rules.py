"""The shipped rule files, read."""

from functools import cache
from typing import Any

import yaml

from tests.paths import ROOT

FOLDER = ROOT / "deploy" / "prometheus"


def _rules(name: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@cache
def recorded() -> dict[str, str]:
    """Recording rules: name to expression."""
    return {rule["record"]: rule["expr"] for rule in _rules("rules.yml")}


@cache
def alerts() -> dict[str, dict[str, Any]]:
    """Alerts by name."""
    return {rule["alert"]: rule for rule in _rules("alerts.yml")}

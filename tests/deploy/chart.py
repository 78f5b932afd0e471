"""The chart, rendered by Helm's own engine, which `make test-deploy` installs; without it the tests
that import this are skipped."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.paths import ROOT

helm: Any = pytest.importorskip("helm_python", reason="installed by make test-deploy")

CHART = ROOT / "deploy" / "helm" / "tokenlane"
VARIANTS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("chart_values.yaml").read_text(encoding="utf-8")
)


def files(values: dict[str, Any]) -> dict[str, str]:
    """Render the chart as the release `lane`: texts by their templates."""
    with helm.Chart.load(str(CHART)) as chart:
        made: dict[str, str] = chart.render(values, name="lane", namespace="default")
        return made


def objects(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what the chart makes: `kind/name` to object."""
    texts = [text for path, text in files(values).items() if path.endswith(".yaml")]
    made = [one for text in texts for one in yaml.safe_load_all(text) if one is not None]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in made}

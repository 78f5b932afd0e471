"""deploy/ held to the tools that will read it: hadolint, Grafana's model of a dashboard, KEDA's of
a scaled object. The chart: test_chart.py.

They are installed by `make test-deploy` in an environment of their own, and skipped without it.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.fields import unknown
from tests.paths import ROOT

_WHY = "installed by make test-deploy"
keda: Any = pytest.importorskip("cloudcoil.models.keda.v1alpha1", reason=_WHY)
dashboards: Any = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason=_WHY)
encoder: Any = pytest.importorskip("grafana_foundation_sdk.cog.encoder", reason=_WHY)
plugins: Any = pytest.importorskip("grafana_foundation_sdk.cog.plugins", reason=_WHY)

DEPLOY = ROOT / "deploy"


def test_hadolint_accepts_the_dockerfile() -> None:
    argv = [str(Path(sys.executable).with_name("hadolint")), str(DEPLOY / "Dockerfile")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def through_grafana(board: dict[str, Any]) -> list[str]:
    plugins.register_default_plugins()  # the models of panels and of Prometheus' queries
    model = dashboards.Dashboard.from_json(board)
    return list(unknown(board, json.loads(encoder.JSONEncoder().encode(model))))


@pytest.mark.parametrize("board", sorted((DEPLOY / "grafana").glob("*.json")), ids=lambda p: p.stem)
def test_grafana_knows_every_field_of_the_boards(board: Path) -> None:
    lost = through_grafana(json.loads(board.read_text(encoding="utf-8")))
    # Grafana writes a variable's `definition` itself, though its model does not have it.
    assert [path for path in lost if not path.endswith(".definition")] == []


def test_grafanas_model_would_notice_a_misspelt_field() -> None:
    board = json.loads((DEPLOY / "grafana" / "tokenlane.json").read_text(encoding="utf-8"))
    panel = next(one for one in board["panels"] if one["type"] == "timeseries")
    panel["fieldConfig"]["defaults"]["custom"]["lineWdith"] = 1
    panel["targets"][0]["legendFromat"] = "x"
    lost = through_grafana(board)
    assert any(path.endswith("custom.lineWdith") for path in lost)
    assert any(path.endswith("targets[0].legendFromat") for path in lost)


def through_keda(scaled: dict[str, Any]) -> list[str]:
    model = keda.ScaledObject.model_validate(scaled)
    return list(unknown(scaled, model.model_dump(by_alias=True, exclude_unset=True, mode="json")))


def test_keda_knows_every_field_of_the_example() -> None:
    text = (DEPLOY / "autoscaling" / "keda-replicas.yaml").read_text(encoding="utf-8")
    scaled = yaml.safe_load(text)
    assert through_keda(scaled) == []
    scaled["spec"]["minReplicasCount"] = scaled["spec"].pop("minReplicaCount")
    assert through_keda(scaled) == [".spec.minReplicasCount"]

"""deploy/ held to the tools and schemas that will read it: Helm's own engine, Kubernetes' schemas,
hadolint, Grafana's model of a dashboard.

They are installed by `make test-deploy` in an environment of their own, and skipped without it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.templates import Chart
from tests.paths import ROOT

_WHY = "installed by make test-deploy"
helm: Any = pytest.importorskip("helm_python", reason=_WHY)
kubernetes: Any = pytest.importorskip("kubernetes_validate", reason=_WHY)
dashboards: Any = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason=_WHY)
encoder: Any = pytest.importorskip("grafana_foundation_sdk.cog.encoder", reason=_WHY)
plugins: Any = pytest.importorskip("grafana_foundation_sdk.cog.plugins", reason=_WHY)

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "tokenlane"
# Helm's words for how bad a finding is.
_INFO = 1

# As tests/deploy/templates.py takes them: `a__b` is the value b of the section a.
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "scaled": {"autoscaling__enabled": True},
    "watched": {"serviceMonitor__enabled": True, "serviceMonitor__labels": {"release": "prom"}},
    "unbudgeted": {"podDisruptionBudget__enabled": False},
    "discovering": {"discovery__rbac": True, "discovery__namespace": "models"},
    "placed": {
        "volumes": [{"name": "models", "emptyDir": {}}],
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "pool", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"podAntiAffinity": {}},
        "image__tag": "1.2.3",
    },
    "all": {
        "autoscaling__enabled": True,
        "serviceMonitor__enabled": True,
        "discovery__rbac": True,
        "service__type": "LoadBalancer",
    },
}
# The oldest that Chart.yaml lets in, and the newest whose schemas are at hand.
VERSIONS = ("1.25", kubernetes.latest_version())


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Values as Helm takes them."""
    made: dict[str, Any] = {}
    for path, value in values.items():
        *sections, last = path.split("__")
        place = made
        for name in sections:
            place = place.setdefault(name, {})
        place[last] = value
    return made


def rendered(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What Helm makes of the chart with these values."""
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(nested(values), name="lane", namespace="default")
    for text in files.values():
        yield from (one for one in yaml.safe_load_all(text) if one is not None)


def in_order(objects: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(objects, key=lambda one: (one["kind"], one["metadata"]["name"]))


@pytest.fixture(params=VARIANTS, name="values")
def variants(request: pytest.FixtureRequest) -> dict[str, Any]:
    return VARIANTS[request.param]


def test_helm_has_nothing_to_find(values: dict[str, Any]) -> None:
    report = helm.lint(str(CHART), nested(values), strict=True, namespace="default")
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > _INFO] == []


def test_helm_would_find_a_broken_template(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: x\nversion: 0.1.0\n")
    (tmp_path / "templates" / "a.yaml").write_text("a: {{ .Values.none.such }}\n")
    assert helm.lint(str(tmp_path), strict=True)["errors"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicacount": 3}, "'replicacount' not allowed"),
        ({"image": {"tga": "1"}}, "'/image': additional properties 'tga' not allowed"),
        ({"settings": {"server": {"prot": 1}}}, "'/settings/server': additional properties 'prot'"),
        ({"settings": {"server": {"workers": "two"}}}, "got string, want integer"),
    ],
    ids=str,
)
def test_helm_refuses_a_value_that_there_is_not(values: dict[str, Any], said: str) -> None:
    with helm.Chart.load(str(CHART)) as chart, pytest.raises(helm.HelmValuesError, match=said):
        chart.render(values, name="lane", namespace="default")


def test_helm_lets_values_be_taken_away_and_others_be_added() -> None:
    """Replicas found by Kubernetes, in the place of the chart's two; and a chart above this one."""
    settings = {"backends": None, "discovery": {"kubernetes_service": "models/vllm"}}
    values = {"settings": settings, "global": {"a": 1}}
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name="lane", namespace="default")
    (config,) = [text for name, text in files.items() if name.endswith("configmap.yaml")]
    made = yaml.safe_load(yaml.safe_load(config)["data"]["tokenlane.yaml"])
    assert made["discovery"] == settings["discovery"]
    assert "backends" not in made


def test_our_own_reader_renders_what_helm_does(values: dict[str, Any]) -> None:
    """So the tests that use it, where Helm is not at hand, look at what a cluster would get."""
    ours = in_order(iter(Chart(CHART, **values).objects()))
    assert ours == in_order(rendered(values))


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field(values: dict[str, Any], version: str) -> None:
    for one in rendered(values):
        if one["kind"] != "ServiceMonitor":  # the Prometheus operator's, and not in these schemas
            kubernetes.validate(one, version, strict=True)


def test_kubernetes_would_notice_a_misspelt_field() -> None:
    (budget,) = [one for one in rendered({}) if one["kind"] == "PodDisruptionBudget"]
    budget["spec"]["maxUnavailabel"] = budget["spec"].pop("maxUnavailable")
    with pytest.raises(kubernetes.ValidationError, match="maxUnavailabel"):
        kubernetes.validate(budget, VERSIONS[0], strict=True)


def test_hadolint_accepts_the_dockerfile() -> None:
    argv = [str(Path(sys.executable).with_name("hadolint")), str(DEPLOY / "Dockerfile")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def unknown(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Fields that a model did not keep, or kept otherwise."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            at = f"{path}.{name}"
            if name in kept:
                yield from unknown(value, kept[name], at)
            else:
                yield at
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from unknown(one, other, f"{path}[{index}]")
    elif given != kept:
        yield path


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

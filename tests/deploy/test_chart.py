"""The chart, held to what will read it: Helm's engine and lint, Kubernetes' schemas, the models of
the Prometheus operator's objects. What it makes: test_chart_objects.py.

The tools are installed by `make test-deploy` in an environment of their own; without it the tests
are skipped.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart import CHART, VARIANTS, files, helm, objects
from tests.deploy.fields import unknown

_WHY = "installed by make test-deploy"
kubernetes: Any = pytest.importorskip("kubernetes_validate", reason=_WHY)
operator: Any = pytest.importorskip("cloudcoil.models.prometheus_operator.v1", reason=_WHY)

# Helm's words for how bad a finding is.
_INFO = 1
# The oldest that Chart.yaml lets in, and the newest whose schemas are at hand.
VERSIONS = ("1.25", kubernetes.latest_version())
# Not in Kubernetes' schemas; for the Gateway API none are at hand.
_OPERATOR, _GATEWAY_API = "monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1"


@pytest.fixture(params=VARIANTS, name="values")
def variants(request: pytest.FixtureRequest) -> dict[str, Any]:
    return VARIANTS[request.param]


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of values that hold no others, lists and empty sections included."""
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from leaves(below, f"{path}.{name}")
    else:
        yield path


def test_every_value_is_given_by_a_set() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    given = {path for one in VARIANTS.values() for path in leaves(one)}
    missing = {
        path
        for path in leaves(values)
        if not any(f"{one}.".startswith(f"{path}.") for one in given)
    }
    # The gateway's own settings; the chart's services rely on ports and hosts.
    assert {path for path in missing if not path.startswith(".settings.")} == set()


def test_helm_has_nothing_to_find(values: dict[str, Any]) -> None:
    report = helm.lint(str(CHART), values, strict=True, namespace="default")
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > _INFO] == []


def test_helm_would_find_a_broken_template(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: x\nversion: 0.1.0\n")
    (tmp_path / "templates" / "a.yaml").write_text("a: {{ .Values.none.such }}\n")
    assert helm.lint(str(tmp_path), strict=True)["errors"]


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field(values: dict[str, Any], version: str) -> None:
    for one in objects(values).values():
        if one["apiVersion"] not in {_OPERATOR, _GATEWAY_API}:
            kubernetes.validate(one, version, strict=True)


def test_kubernetes_would_notice_a_misspelt_field() -> None:
    budget = objects({})["PodDisruptionBudget/lane"]
    budget["spec"]["maxUnavailabel"] = budget["spec"].pop("maxUnavailable")
    with pytest.raises(kubernetes.ValidationError, match="maxUnavailabel"):
        kubernetes.validate(budget, VERSIONS[0], strict=True)


def through_the_operator(one: dict[str, Any]) -> list[str]:
    model = getattr(operator, one["kind"]).model_validate(one)
    return list(unknown(one, model.model_dump(by_alias=True, exclude_unset=True, mode="json")))


def test_the_prometheus_operator_knows_every_field(values: dict[str, Any]) -> None:
    for one in objects(values).values():
        if one["apiVersion"] == _OPERATOR:
            assert through_the_operator(one) == []


def test_the_operators_models_would_notice_a_misspelt_field() -> None:
    monitor = objects({"podMonitor": {"enabled": True}})["PodMonitor/lane"]
    monitor["spec"]["joblabel"] = monitor["spec"].pop("jobLabel")
    assert through_the_operator(monitor) == [".spec.joblabel"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicacount": 3}, "'replicacount' not allowed"),
        ({"volumes": []}, "additional properties 'volumes' not allowed"),
        ({"image": {"tga": "1"}}, "'/image': additional properties 'tga' not allowed"),
        ({"settings": {"server": {"prot": 1}}}, "'/settings/server': additional properties 'prot'"),
        ({"settings": {"server": {"workers": "two"}}}, "got string, want integer"),
        ({"extraEnv": ["A=1"]}, "'/extraEnv/0': got string, want object"),
    ],
    ids=str,
)
def test_helm_refuses_a_value_that_there_is_not(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmValuesError, match=said):
        files(values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs is empty: name the Gateway"),
        (
            {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
            "would count everything twice: enable one of them",
        ),
        (
            {"autoscaling": {"enabled": True, "targetCPUUtilizationPercentage": 0}},
            "nothing to scale on: set targetCPUUtilizationPercentage or loopLateness.enabled",
        ),
    ],
    ids=str,
)
def test_values_that_cannot_work_are_refused_with_the_next_step(
    values: dict[str, Any], said: str
) -> None:
    with pytest.raises(helm.HelmRenderError, match=said):
        files(values)


def test_helm_lets_values_be_taken_away_and_others_be_added() -> None:
    """Replicas found by Kubernetes instead of the chart's two; and a chart above this one."""
    settings = {"backends": None, "discovery": {"kubernetes_service": "models/vllm"}}
    made = objects({"settings": settings, "global": {"a": 1}})["ConfigMap/lane"]
    config = yaml.safe_load(made["data"]["tokenlane.yaml"])
    assert config["discovery"] == settings["discovery"]
    assert "backends" not in config


def test_the_package_holds_what_the_folder_does(tmp_path: Path) -> None:
    """Rules and boards are links in the folder, and files in the package."""
    archive = Path(helm.package(str(CHART), destination=str(tmp_path)))
    with helm.Chart.load_archive(archive.read_bytes()) as packaged:
        made = packaged.render(VARIANTS["all"], name="lane", namespace="default")
    assert made == files(VARIANTS["all"])

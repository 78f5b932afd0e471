"""What the chart makes hangs together: names, selectors, ports, accounts, rules and boards."""

import json
from typing import Any

import msgspec
import pytest
import yaml

from tests.deploy.chart import VARIANTS, files, objects
from tests.deploy.rules import alerts, recorded
from tests.paths import ROOT
from tokenlane.config.settings import Settings


@pytest.fixture(params=VARIANTS, name="values")
def variants(request: pytest.FixtureRequest) -> dict[str, Any]:
    return VARIANTS[request.param]


def pod(values: dict[str, Any]) -> dict[str, Any]:
    """Return what the gateway's pods are made by."""
    spec: dict[str, Any] = objects(values)["Deployment/lane"]["spec"]["template"]["spec"]
    return spec


def test_what_is_on_by_default() -> None:
    assert sorted(objects({})) == [
        "ConfigMap/lane",
        "Deployment/lane",
        "Deployment/lane-valkey",
        "Pod/lane-test",
        "PodDisruptionBudget/lane",
        "Service/lane",
        "Service/lane-admin",
        "Service/lane-valkey",
        "ServiceAccount/lane",
    ]


def test_what_can_be_turned_on() -> None:
    assert sorted(objects(VARIANTS["all"]).keys() - objects({}).keys()) == [
        "ConfigMap/lane-dashboards",
        "HTTPRoute/lane",
        "HorizontalPodAutoscaler/lane",
        "Ingress/lane",
        "NetworkPolicy/lane",
        "NetworkPolicy/lane-valkey",
        "PrometheusRule/lane-alerts",
        "PrometheusRule/lane-rules",
        "Role/lane",
        "RoleBinding/lane",
        "ServiceMonitor/lane",
    ]


def test_the_settings_are_the_gateways(values: dict[str, Any]) -> None:
    (config,) = [text for path, text in files(values).items() if path.endswith("configmap.yaml")]
    read = yaml.safe_load(yaml.safe_load(config)["data"]["tokenlane.yaml"])
    check_store(msgspec.convert(read, Settings).fleet.store, values)


def check_store(url: str, values: dict[str, Any]) -> None:
    """Of the settings: the one given, else the chart's own, else none."""
    made = [one for one in objects(values).values() if one["metadata"]["name"].endswith("valkey")]
    given = values.get("settings", {}).get("fleet", {}).get("store", "")
    own = values.get("valkey", {}).get("enabled", True) and not given
    name = values.get("fullnameOverride", "lane")
    assert url == (f"redis://{name}-valkey:6379" if own else given)
    assert bool(made) is own


def test_the_stores_pods_are_its_own_and_gateways_reach_them() -> None:
    made = objects(VARIANTS["fenced_with_gates"])
    gateway = made["Deployment/lane"]["spec"]["template"]["metadata"]["labels"].items()
    pods = made["Deployment/lane-valkey"]["spec"]["template"]["metadata"]["labels"].items()
    for selected in (
        made["Deployment/lane-valkey"]["spec"]["selector"]["matchLabels"],
        made["Service/lane-valkey"]["spec"]["selector"],
        made["NetworkPolicy/lane-valkey"]["spec"]["podSelector"]["matchLabels"],
        made["NetworkPolicy/lane"]["spec"]["egress"][-1]["to"][0]["podSelector"]["matchLabels"],
    ):
        assert selected.items() <= pods
        assert not selected.items() <= gateway
    assert not made["Deployment/lane"]["spec"]["selector"]["matchLabels"].items() <= pods
    (peer,) = made["NetworkPolicy/lane-valkey"]["spec"]["ingress"][0]["from"]
    assert peer["podSelector"]["matchLabels"].items() <= gateway


def test_names_follow_the_override() -> None:
    override = {**VARIANTS["all"], "fullnameOverride": "chat"}
    assert {name.replace("/lane", "/chat") for name in objects(VARIANTS["all"])} == set(
        objects(override)
    )
    text = json.dumps(objects(override))
    assert "lane-admin" not in text
    assert "http://chat-admin:8081" in text


def test_labels_are_on_everything_and_selectors_do_without_them() -> None:
    made = objects({**VARIANTS["all"], **VARIANTS["labelled"]})
    for one in made.values():
        assert one["metadata"]["labels"]["team"] == "llm"
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "lane"
    own = made["Deployment/lane"]["spec"]["template"]["metadata"]
    assert own["labels"]["cost-center"] == "42"
    assert own["annotations"].keys() == {"checksum/settings", "sidecar.istio.io/inject"}
    assert "team" not in made["Deployment/lane"]["spec"]["selector"]["matchLabels"]


def test_everything_that_selects_pods_finds_the_gateways_alone() -> None:
    made = objects(VARIANTS["all"] | VARIANTS["spread"])
    gateway = made["Deployment/lane"]["spec"]["template"]["metadata"]["labels"].items()
    asking = made["Pod/lane-test"]["metadata"]["labels"].items()
    (spread, other) = made["Deployment/lane"]["spec"]["template"]["spec"][
        "topologySpreadConstraints"
    ]
    assert other["labelSelector"] == {"matchLabels": {"team": "llm"}}
    for selected in (
        made["Deployment/lane"]["spec"]["selector"]["matchLabels"],
        made["Service/lane"]["spec"]["selector"],
        made["Service/lane-admin"]["spec"]["selector"],
        made["PodDisruptionBudget/lane"]["spec"]["selector"]["matchLabels"],
        made["NetworkPolicy/lane"]["spec"]["podSelector"]["matchLabels"],
        spread["labelSelector"]["matchLabels"],
        objects({"podMonitor": {"enabled": True}})["PodMonitor/lane"]["spec"]["selector"][
            "matchLabels"
        ],
    ):
        assert selected.items() <= gateway
        assert not selected.items() <= asking
    monitor = made["ServiceMonitor/lane"]["spec"]["selector"]["matchLabels"].items()
    assert monitor <= made["Service/lane-admin"]["metadata"]["labels"].items()
    assert not monitor <= made["Service/lane"]["metadata"]["labels"].items()
    let_in = made["NetworkPolicy/lane"]["spec"]["ingress"][1]["from"][0]["podSelector"]
    assert let_in["matchLabels"].items() <= asking


def test_the_pod_has_what_the_container_names(values: dict[str, Any]) -> None:
    name = values.get("fullnameOverride", "lane")
    deployment = objects(values)[f"Deployment/{name}"]
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    ports = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    deadline_s = values.get("settings", {}).get("server", {}).get("drain_deadline_s", 30)
    (sleep, pause_s) = container["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep"
    assert spec["terminationGracePeriodSeconds"] > deadline_s + int(pause_s)


def test_the_gateway_may_watch_endpoint_slices() -> None:
    made = objects(VARIANTS["discovering"])
    assert pod(VARIANTS["discovering"])["automountServiceAccountToken"] is True
    assert pod({})["automountServiceAccountToken"] is False
    (rule,) = made["Role/lane"]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["endpointslices"], ["list", "watch"])
    assert made["RoleBinding/lane"]["roleRef"]["name"] == "lane"
    assert {made[f"{kind}/lane"]["metadata"]["namespace"] for kind in ("Role", "RoleBinding")} == {
        "models"
    }


@pytest.mark.parametrize(
    ("account", "name"),
    [
        ({}, "lane"),
        ({"name": "chat"}, "chat"),
        ({"create": False}, "default"),
        ({"create": False, "name": "shared"}, "shared"),
    ],
    ids=str,
)
def test_pod_and_role_are_of_one_service_account(account: dict[str, Any], name: str) -> None:
    made = objects({"serviceAccount": account, "discovery": {"rbac": True}})
    assert made["Deployment/lane"]["spec"]["template"]["spec"]["serviceAccountName"] == name
    assert made["RoleBinding/lane"]["subjects"][0]["name"] == name
    assert (f"ServiceAccount/{name}" in made) == account.get("create", True)


def test_the_autoscaler_scales_on_what_it_was_told() -> None:
    scaler = objects(VARIANTS["all"])
    cpu, late = scaler["HorizontalPodAutoscaler/lane"]["spec"]["metrics"]
    assert cpu["resource"]["target"]["averageUtilization"] == 60
    adapter = ROOT / "deploy" / "autoscaling" / "prometheus-adapter.yaml"
    (rule,) = yaml.safe_load(adapter.read_text(encoding="utf-8"))["rules"]["custom"]
    assert late["pods"]["metric"]["name"] == rule["name"]["as"]
    assert "replicas" not in scaler["Deployment/lane"]["spec"]
    (late,) = objects(VARIANTS["scaled_by_lateness"])["HorizontalPodAutoscaler/lane"]["spec"][
        "metrics"
    ]
    assert late["pods"]["target"]["averageValue"] == "20m"


def test_the_operator_gets_the_rules_and_alerts_of_the_files() -> None:
    base = "https://docs.example.com/tokenlane/runbook.html"
    for values, key, page in (
        (VARIANTS["alerting"], "runbook_url", base),
        (VARIANTS["alerting_without_a_site"], "runbook", "docs/runbook.md"),
    ):
        made = objects(values)
        rules = made["PrometheusRule/lane-rules"]["spec"]["groups"]
        assert {rule["record"]: rule["expr"] for group in rules for rule in group["rules"]} == (
            recorded()
        )
        groups = made["PrometheusRule/lane-alerts"]["spec"]["groups"]
        given = {rule["alert"]: rule for group in groups for rule in group["rules"]}
        assert given.keys() == alerts().keys()
        for name, alert in alerts().items():
            heading = alert["annotations"]["runbook"].partition("#")[2]
            assert given[name]["annotations"][key] == f"{page}#{heading}"
            assert given[name]["expr"] == alert["expr"]


def test_grafanas_sidecar_gets_the_boards() -> None:
    boards = objects({"dashboards": {"enabled": True}})["ConfigMap/lane-dashboards"]
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    folder = ROOT / "deploy" / "grafana"
    assert {name: json.loads(text) for name, text in boards["data"].items()} == {
        path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")
    }


def notes(values: dict[str, Any]) -> str:
    (text,) = [text for path, text in files(values).items() if path.endswith("NOTES.txt")]
    return text


def test_the_notes_say_how_to_ask(values: dict[str, Any]) -> None:
    said = notes(values)
    assert "helm test lane --namespace default --logs" in said
    for host in values.get("ingress", {}).get("hosts", ()):
        assert f"curl https://{host}/v1/models" in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "No monitor of the chart"),
        ({"podMonitor": {"enabled": True}}, ""),
        (
            {"podMonitor": {"enabled": True}, "networkPolicy": {"enabled": True}},
            "Prometheus cannot scrape it: networkPolicy.admins",
        ),
        (
            {
                "serviceMonitor": {"enabled": True},
                "settings": {"admin": {"read_needs_token": True}},
            },
            "Prometheus cannot scrape it: settings.admin.read_needs_token",
        ),
        ({**VARIANTS["watched_by_service"], "settings": {"admin": {"read_needs_token": True}}}, ""),
    ],
    ids=str,
)
def test_the_notes_say_whether_prometheus_can_scrape(values: dict[str, Any], said: str) -> None:
    _, _, rest = notes(values).partition("service/lane-admin 8081:8081")
    assert rest.strip().startswith(said)
    assert bool(rest.strip()) == bool(said)

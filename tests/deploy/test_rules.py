"""Recording rules and alerts, as promtool sees them: each alert fires when it should, and only
then. rule_cases.py says when it should."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.dashboard.boards import BOARDS
from scripts.dashboard.panel import told, told_rate
from tests.deploy.rule_cases import CASES, LONG_STALLS, MORE_CASES, Case, up
from tests.deploy.rules import FOLDER, alerts, recorded
from tests.deploy.scope import metrics_in
from tokenlane.telemetry.metrics.families import BY_NAME

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)

GATEWAY = 'instance="g:8081",job="tokenlane"'


def promtool(*words: str) -> str:
    """What it prints; the test fails where it does."""
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def series(values: dict[str, str]) -> list[dict[str, str]]:
    """With the labels that a scrape adds."""
    return [
        {
            "series": name.replace("{", "{" + GATEWAY + ("" if name.endswith("{}") else ",")),
            "values": value,
        }
        for name, value in values.items()
    ]


def fires(alert: str, case: Case, values: dict[str, str]) -> dict[str, Any]:
    """A unit test for promtool in which the alert is there, and nothing is said of its text."""
    # promtool compares labels and annotations exactly; ALERTS shows whether it fires.
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > 0'
    return {
        "interval": case.interval,
        "input_series": series(values),
        "promql_expr_test": [
            {
                "expr": f"({firing}) * 0 + 1 or vector(0)",
                "eval_time": f"{case.minutes}m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
        ],
    }


def quiet(alert: str, case: Case) -> dict[str, Any]:
    """The same, in which it is not."""
    made = fires(alert, case, case.good)
    made["promql_expr_test"][0]["exp_samples"][0]["value"] = 0
    return made


def run_tests(tests: Sequence[dict[str, Any]], folder: Path) -> None:
    """promtool on these unit tests, against the shipped files, which are evaluated as often as a
    test has values."""
    for interval in {test["interval"] for test in tests}:
        asked = {
            "rule_files": [str(FOLDER / "rules.yml"), str(FOLDER / "alerts.yml")],
            "evaluation_interval": interval,
            "tests": [test for test in tests if test["interval"] == interval],
        }
        path = folder / "tests.yml"
        path.write_text(yaml.safe_dump(asked), encoding="utf-8")
        promtool("test", "rules", str(path))


def asked_by_autoscalers() -> dict[str, str]:
    """Return the queries of deploy/autoscaling, by file."""
    folder = FOLDER.parent / "autoscaling"
    adapter = yaml.safe_load((folder / "prometheus-adapter.yaml").read_text(encoding="utf-8"))
    scaled = yaml.safe_load((folder / "keda-replicas.yaml").read_text(encoding="utf-8"))
    (rule,), (trigger,) = adapter["rules"]["custom"], scaled["spec"]["triggers"]
    lateness = rule["metricsQuery"].replace("<<.GroupBy>>", "pod")
    return {
        "adapter": lateness.replace("<<.LabelMatchers>>", 'namespace="n"'),
        "keda": trigger["metadata"]["query"],
    }


@pytest.mark.slow
def test_autoscalers_get_the_worst_worker_and_all_that_waits(tmp_path: Path) -> None:
    name = "tokenlane_loop_stall_seconds"
    values = {
        f'{name}_bucket{{{labels},worker="{worker}",le="0.005"}}': in_time
        for labels, worker, in_time in (
            ('namespace="n",pod="a"', 0, "0+99x60"),
            ('namespace="n",pod="a"', 1, "0+80x60"),
            ('namespace="other",pod="a"', 0, "0+0x60"),
        )
    }
    values |= {
        bucket.partition(",le=")[0].replace("_bucket", "_count") + "}": "0+100x60"
        for bucket in values
    }
    values |= {
        f'tokenlane_replica_queued_tokens{{pod="{pod}",replica="r"}}': "30000x60" for pod in "ab"
    }
    queries = asked_by_autoscalers()
    for query in queries.values():
        assert all(re.sub(r"_(bucket|count)$", "", one) in BY_NAME for one in metrics_in(query))
    samples = {
        "adapter": {"labels": '{pod="a"}', "value": 0.2},
        "keda": {"labels": "{}", "value": 60000},
    }
    tests = [
        {"expr": f"round({queries[file]}, 0.001)", "eval_time": "10m", "exp_samples": [sample]}
        for file, sample in samples.items()
    ]
    asked = {"interval": "1m", "input_series": series(values), "promql_expr_test": tests}
    run_tests([asked], tmp_path)


@pytest.mark.slow
def test_boards_show_what_a_replica_tells_two_gateways_once(tmp_path: Path) -> None:
    # Of each gateway, and of each rank; then of all together.
    ranks = [',rank="0"', ',rank="1"']
    shown = (
        ("tokenlane_replica_running_requests", [""], told, "replica", "8x60", 8),
        ("tokenlane_kv_blocks", ranks, told, "replica", "500x60", 1_000),
        ("tokenlane_kv_events_total", ranks, told_rate, "replica", "0+60x60", 2),
    )
    values: dict[str, str] = {}
    tests = []
    for name, labels, query, by, samples, value in shown:
        for at in ("a", "b"):
            values |= {f'{name}{{instance="{at}",replica="r"{one}}}': samples for one in labels}
        expr = query(name, by).replace("$instance", ".*").replace("$__rate_interval", "5m")
        sample = {"labels": '{replica="r"}', "value": value}
        tests.append({"expr": expr, "eval_time": "10m", "exp_samples": [sample]})
    given = [{"series": name, "values": value} for name, value in values.items()]
    asked = {"interval": "1m", "input_series": given, "promql_expr_test": tests}
    run_tests([asked], tmp_path)


def test_promtool_accepts_the_configuration() -> None:
    said = promtool("check", "config", str(FOLDER / "prometheus.yml"))
    assert f"{len(recorded())} rules found" in said
    assert f"{len(alerts())} rules found" in said


def test_every_alert_has_its_case() -> None:
    assert set(CASES) == set(alerts())
    for name, alert in alerts().items():
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}, name
        assert set(alert["annotations"]) == {"summary", "description", "runbook"}, name


def test_every_recorded_series_is_asked_for() -> None:
    exprs = [alert["expr"] for alert in alerts().values()]
    exprs += [
        query.expr
        for board in BOARDS.values()
        for panel in board.panels()
        for query in panel.queries
    ]
    assert recorded().keys() <= {name for expr in exprs for name in metrics_in(expr)}


@pytest.mark.slow
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    cases = [*CASES.items(), *MORE_CASES]
    run_tests([fires(name, case, case.bad) for name, case in cases], tmp_path)


@pytest.mark.slow
def test_alerts_are_quiet_when_they_should_be(tmp_path: Path) -> None:
    run_tests([quiet(name, case) for name, case in [*CASES.items(), *MORE_CASES]], tmp_path)


@pytest.mark.slow
def test_a_blocked_loop_is_one_alert(tmp_path: Path) -> None:
    """Beats and time say so both: the worker is named, and nobody is called twice."""
    seen = CASES["TokenlaneLoopBlocked"].bad | {
        'tokenlane_loop_stall_cause_seconds_total{cause="inspect"}': "0+30x60"
    }
    once = fires("TokenlaneLoopBlocked", LONG_STALLS, seen)
    query = 'ALERTS{alertname="TokenlaneLoopBlocked",alertstate="firing"}'
    once["promql_expr_test"][0] |= {
        "expr": f"count by (worker) ({query})",
        "exp_samples": [{"labels": '{worker="0"}', "value": 1}],
    }
    run_tests([once], tmp_path)


@pytest.mark.slow
def test_a_fleet_without_replicas_has_none_up(tmp_path: Path) -> None:
    alert = "TokenlaneNoReplicaUp"
    run_tests([fires(alert, CASES[alert], up())], tmp_path)


@pytest.mark.slow
def test_a_wrong_case_is_noticed(tmp_path: Path) -> None:
    case = CASES["TokenlaneDown"]
    with pytest.raises(AssertionError, match="FAILED"):
        run_tests([fires("TokenlaneDown", case, case.good)], tmp_path)

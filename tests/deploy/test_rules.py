"""Recording rules and alerts, as promtool sees them: each alert fires when it should, and only
then. Series are in promtool's words: `start+step x times`, one value a minute."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from scripts.dashboard.boards import BOARDS
from tests.deploy.rules import FOLDER, alerts, recorded
from tests.deploy.scope import metrics_in
from tokenlane.telemetry.metrics.families import BY_NAME

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)

GATEWAY = 'instance="g:8081",job="tokenlane"'


class Case(NamedTuple):
    """`bad` makes the alert fire after `minutes`; `good` does not. name{labels} -> values, one for
    each `interval`."""

    bad: dict[str, str]
    good: dict[str, str]
    minutes: int = 10
    interval: str = "1m"


def requests(
    ok: str, failed: str = "0x60", status: str = "502", outcome: str = "ok"
) -> dict[str, str]:
    name = "tokenlane_requests_total"
    return {
        f'{name}{{status="200",outcome="ok"}}': ok,
        f'{name}{{status="{status}",outcome="{outcome}"}}': failed,
    }


def late(total: str, in_time: str, le: str) -> dict[str, str]:
    """Heartbeats of worker 0, and how many of them came within `le` seconds."""
    name = "tokenlane_loop_stall_seconds"
    return {
        f'{name}_count{{worker="0"}}': total,
        f'{name}_bucket{{worker="0",le="{le}"}}': in_time,
        f'{name}_bucket{{worker="0",le="+Inf"}}': total,
    }


def up(*replicas: str) -> dict[str, str]:
    """A gateway, and whether each of its replicas is up."""
    found = {f'tokenlane_replica_up{{replica="{at}"}}': one for at, one in enumerate(replicas)}
    return {"tokenlane_build_info{}": "1x60", **found}


def caches(hits: str, misses: str) -> dict[str, str]:
    name = "tokenlane_token_cache"
    return {
        f'{name}_hits_total{{cache="request"}}': hits,
        f'{name}_misses_total{{cache="request"}}': misses,
    }


def slow(name: str, labels: str, within: str, of: str, le: str) -> dict[str, str]:
    """A histogram of which `within` of `of` observations are below `le`, the rest below +Inf."""
    rest = {"10": "30", "0.1": "0.25"}[le]
    return {
        f'{name}_bucket{{{labels}le="{le}"}}': within,
        f'{name}_bucket{{{labels}le="{rest}"}}': of,
        f'{name}_bucket{{{labels}le="+Inf"}}': of,
    }


def replicas(name: str, **upto: str) -> dict[str, str]:
    """A histogram of three replicas, a scrape every 5 s. upto: where most of a replica's
    observations are, if not below 0.025."""
    found = {}
    for replica in ("a", "b", "c"):
        labels = f'model="m",replica="{replica}"'
        for le in ("0.01", "0.025", "0.1", "0.15", "0.25", "0.5", "+Inf"):
            within = float(le) >= float(upto.get(replica, "0.025"))
            found[f'{name}_bucket{{{labels},le="{le}"}}'] = "0+20x24" if within else "0+1x24"
        found[f"{TTFT}_count{{{labels}}}"] = "0+20x24"
    return found


TTFT = "tokenlane_time_to_first_token_seconds"
TPOT = "tokenlane_time_per_output_token_seconds"
QUEUE = "tokenlane_tokenize_queue_seconds"
CASES = {
    "TokenlaneDown": Case({"up{}": "0x60"}, {"up{}": "1x60"}),
    "TokenlaneNoReplicaUp": Case(
        up("0x60", "0x60"), up("0x60", "1x60")
    ),
    "TokenlaneReplicaDown": Case(
        {'tokenlane_replica_up{replica="a"}': "0x60"},
        {'tokenlane_replica_up{replica="a"}': "1x8 0 1x50"},
    ),
    "TokenlaneNoWorkerReady": Case(
        {'tokenlane_workers{state="starting"}': "2x60"},
        {'tokenlane_workers{state="starting"}': "1x60", 'tokenlane_workers{state="ready"}': "1x60"},
    ),
    "TokenlaneWorkerRestarts": Case(
        {"tokenlane_worker_restarts_total{}": "0+1x60"},
        {"tokenlane_worker_restarts_total{}": "0x8 1x60"},
    ),
    "TokenlaneConfigRefused": Case(
        {"tokenlane_config_last_reload_successful{}": "0x60"},
        {"tokenlane_config_last_reload_successful{}": "1x60"},
    ),
    "TokenlaneFailures": Case(
        requests("0+90x60", "0+10x60"), requests("0+99x60", "0+1x60")
    ),
    "TokenlaneTruncatedAnswers": Case(
        requests("0+97x60", "0+3x60", "200", "truncated"),
        requests("0+97x60", "0+3x60", "499", "client_gone"),
        15,
    ),
    "TokenlaneRetries": Case(
        {**requests("0+100x60"), 'tokenlane_retries_total{reason="busy"}': "0+20x60"},
        {**requests("0+100x60"), 'tokenlane_retries_total{reason="busy"}': "0+5x60"},
        20,
    ),
    "TokenlaneSlowFirstToken": Case(
        slow(TTFT, "", "0+90x60", "0+100x60", "10"),
        slow(TTFT, "", "0+100x60", "0+100x60", "10"),
        20,
    ),
    "TokenlaneReplicaSlow": Case(
        {**replicas(TPOT, b="0.15"), **replicas(TTFT)},
        {**replicas(TPOT), **replicas(TTFT, b="0.1")},
        1, "5s",
    ),
    "TokenlaneLoopBlocked": Case(
        late("0+12000x60", "0+11000x60", "0.005"), late("0+12000x60", "0+11990x60", "0.005")
    ),
    "TokenlaneLoopFrozen": Case(
        late("0+12000x60", "0+11999x60", "0.25"), late("0+12000x60", "0+12000x60", "0.25")
    ),
    "TokenlanePoolNeeded": Case(
        {**late("0+12000x60", "0+11000x60", "0.005"), **caches("0+20x60", "0+80x60")},
        {**late("0+12000x60", "0+11000x60", "0.005"), **caches("0+80x60", "0+20x60")},
    ),
    "TokenlaneCacheHitRateLow": Case(
        {**caches("0+20x90", "0+80x90"), 'tokenlane_prompt_tokens_total{model="m"}': "0+600000x90"},
        {**caches("0+20x90", "0+80x90"), 'tokenlane_prompt_tokens_total{model="m"}': "0+600x90"},
        60,
    ),
    "TokenlaneTokenizeQueue": Case(
        slow(QUEUE, 'rung="threads",', "0+90x60", "0+100x60", "0.1"),
        slow(QUEUE, 'rung="threads",', "0+100x60", "0+100x60", "0.1"),
        15,
    ),
    "TokenlaneBails": Case(
        {
            'tokenlane_tokenize_bails_total{reason="busy"}': "0+20x60",
            'tokenlane_tokenize_seconds_count{rung="cache"}': "0+100x60",
        },
        {
            'tokenlane_tokenize_bails_total{reason="no-tokenizer"}': "0+20x60",
            'tokenlane_tokenize_seconds_count{rung="cache"}': "0+100x60",
        },
        20,
    ),
    # Appears at once with all it will ever count, as when a replica is asked at its start.
    "TokenlaneTokenMismatch": Case(
        {'tokenlane_prompt_token_mismatches_total{model="m",replica="a"}': "_x4 9x60"},
        {'tokenlane_prompt_token_mismatches_total{model="m",replica="a"}': "9x60"},
        18,
    ),
    "TokenlanePredictionsOff": Case(
        {
            'tokenlane_predicted_cached_tokens_total{model="m"}': "0+150x60",
            'tokenlane_actual_cached_tokens_total{model="m"}': "0+100x60",
        },
        {
            'tokenlane_predicted_cached_tokens_total{model="m"}': "0+110x60",
            'tokenlane_actual_cached_tokens_total{model="m"}': "0+100x60",
        },
        30,
    ),
}  # fmt: skip


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
    run_tests([fires(name, case, case.bad) for name, case in CASES.items()], tmp_path)


@pytest.mark.slow
def test_alerts_are_quiet_when_they_should_be(tmp_path: Path) -> None:
    run_tests([quiet(name, case) for name, case in CASES.items()], tmp_path)


@pytest.mark.slow
def test_a_fleet_without_replicas_has_none_up(tmp_path: Path) -> None:
    alert = "TokenlaneNoReplicaUp"
    run_tests([fires(alert, CASES[alert], up())], tmp_path)


@pytest.mark.slow
def test_a_wrong_case_is_noticed(tmp_path: Path) -> None:
    case = CASES["TokenlaneDown"]
    with pytest.raises(AssertionError, match="FAILED"):
        run_tests([fires("TokenlaneDown", case, case.good)], tmp_path)

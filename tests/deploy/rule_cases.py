"""When each alert fires, and when it does not. Series are in promtool's words: `start+step x
times`, one value a minute."""

from typing import NamedTuple


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


# 200 ms every 1.1 s: 0.55 % of the beats, 18 % of the time. And a tenth of that.
LONG_STALLS = Case(
    late("0+9872x60", "0+9818x60", "0.005")
    | {'tokenlane_loop_stall_cause_seconds_total{cause="inspect"}': "0+10.9x60"},
    late("0+9872x60", "0+9867x60", "0.005")
    | {'tokenlane_loop_stall_cause_seconds_total{cause="inspect"}': "0+1.1x60"},
)
# Worker 0 hangs for half a minute, and is replaced; or it is another worker that starts.
HANGS = Case(
    late("0+1000x2 2000x4 2000+1000x20", "0+1000x2 2000x4 2000+1000x20", "0.25")
    | {'tokenlane_workers{state="ready"}': "2x30"},
    late("0+1000x2 2000x4 2000+1000x20", "0+1000x2 2000x4 2000+1000x20", "0.25")
    | {
        'tokenlane_workers{state="ready"}': "2x2 1x5 2x30",
        'tokenlane_workers{state="starting"}': "_x3 1x5 stale",
    },
    2, "5s",
)  # fmt: skip
# Alerts that fire for more than one reason: the others.
MORE_CASES = (
    ("TokenlaneLoopFrozen", HANGS),
    ("TokenlaneLoopBlocked", LONG_STALLS),
    (
        "TokenlanePoolNeeded",
        Case(LONG_STALLS.bad | caches("0+20x60", "0+80x60"),
             LONG_STALLS.bad | caches("0+80x60", "0+20x60")),
    ),
)  # fmt: skip

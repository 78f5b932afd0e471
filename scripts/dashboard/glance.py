"""The rows that boards begin with: how it goes, and is it well."""

from scripts.dashboard.panel import Panel, Query, Row, quantile, rate, total, where

_SIDE_BY_SIDE = Panel(
    "Stalls, hit rate and tail latency",
    "s",
    (
        Query(
            f"max by (instance) (instance_worker:tokenlane_loop_stall_seconds:p99_rate1m{where()})",
            "loop late, p99 {{instance}}",
        ),
        Query(
            f"instance:tokenlane_time_to_first_token_seconds:p99_rate1m{where()}",
            "time to first token, p99 {{instance}}",
        ),
        Query(
            f"instance_cache:tokenlane_token_cache_hits:ratio_rate1m{where()}",
            "hit rate of {{cache}} {{instance}}",
            right_unit="percentunit",
        ),
    ),
    "Read together: hit rate falls, the loop is late, tails grow: tokenization is on the loop, and "
    "it needs the pool. Tails that grow alone are the replicas'. Hit rate above 70 %: caching "
    "works; below 50 %: the pool is needed.",
    width=24,
)

_PROMPTS = rate("tokenlane_prompt_tokens_total")
_CACHED = rate("tokenlane_actual_cached_tokens_total")

GLANCE = Row(
    "At a glance",
    (
        Panel(
            "Requests",
            "reqps",
            (Query(rate("tokenlane_requests_total"), "requests"),),
            "Answered per second, whatever the answer.",
            width=5,
        ),
        Panel(
            "Failures",
            "percentunit",
            (Query(f"max(instance:tokenlane_request_failures:ratio_rate5m{where()})", "failed"),),
            "Share of 5xx answers and streams cut off, of the worst gateway, over five minutes.",
            steps=((None, "green"), (0.01, "yellow"), (0.05, "red")),
            width=5,
        ),
        Panel(
            "Time to first token",
            "s",
            tuple(
                Query(quantile(share, "tokenlane_time_to_first_token_seconds"), f"p{share * 100:g}")
                for share in (0.5, 0.99)
            ),
            "Of streamed answers, all models.",
            width=5,
        ),
        Panel(
            "Prefix hit rate",
            "percentunit",
            (Query(f"{_CACHED} / {_PROMPTS}", "hit rate"),),
            "Share of the prompt tokens that answers reported as cached. Too low where some do not "
            "report: vLLM needs --enable-prompt-tokens-details, a stream has to ask for its usage.",
            width=5,
        ),
        Panel(
            "Tokens saved",
            "short",
            (Query(_PROMPTS, "prompt tokens"), Query(_CACHED, "of them cached")),
            "Per second: prompt tokens, and those that no GPU had to compute.",
            width=4,
        ),
    ),
)

HEALTH = Row(
    "Health",
    (
        Panel(
            "Heartbeats over 5 ms late",
            "percentunit",
            (
                Query(
                    f"max(instance_worker:tokenlane_loop_beats_over_5ms:ratio_rate1m{where()})",
                    "worst worker",
                ),
            ),
            "Of the worst worker. More than 1 %: something blocks the loop.",
            kind="stat",
            steps=((None, "green"), (0.001, "yellow"), (0.01, "red")),
            width=8,
        ),
        Panel(
            "Replicas up",
            "percentunit",
            (Query(f"avg(tokenlane_replica_up{where()})", "up"),),
            "Share of the replicas that are up.",
            kind="stat",
            steps=((None, "red"), (0.5, "yellow"), (1.0, "green")),
            width=8,
        ),
        Panel(
            "Workers ready",
            "short",
            (Query(total("tokenlane_workers", matchers='state="ready"'), "ready"),),
            "Worker processes that serve.",
            kind="stat",
            width=8,
        ),
    ),
)

CONVICTS = Row("What convicts", (_SIDE_BY_SIDE,))

"""The first board: is it well, and if not, who is it?"""

from scripts.dashboard.panel import Board, Panel, Query, Row, quantile, rate, total, where

SIDE_BY_SIDE = Panel(
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

_GLANCE = Row(
    "At a glance",
    (
        Panel(
            "Requests",
            "reqps",
            (Query(rate("tokenlane_requests_total"), "requests"),),
            "Answered per second, whatever the answer.",
            kind="stat",
            width=4,
        ),
        Panel(
            "Failures",
            "percentunit",
            (Query(f"max(instance:tokenlane_request_failures:ratio_rate5m{where()})", "failed"),),
            "Share of 5xx answers and streams cut off, of the worst gateway.",
            kind="stat",
            steps=((None, "green"), (0.01, "yellow"), (0.05, "red")),
            width=4,
        ),
        Panel(
            "Time to first token, p99",
            "s",
            (Query(quantile(0.99, "tokenlane_time_to_first_token_seconds"), "p99"),),
            "Of streamed answers, all models.",
            kind="stat",
            width=4,
        ),
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
            width=4,
        ),
        Panel(
            "Replicas up",
            "percentunit",
            (Query(f"avg(tokenlane_replica_up{where()})", "up"),),
            "Share of the replicas whose health probe passes.",
            kind="stat",
            steps=((None, "red"), (0.5, "yellow"), (1.0, "green")),
            width=4,
        ),
        Panel(
            "Workers ready",
            "short",
            (Query(total("tokenlane_workers", matchers='state="ready"'), "ready"),),
            "Worker processes that serve.",
            kind="stat",
            width=4,
        ),
    ),
)

_TRAFFIC = Row(
    "Traffic",
    (
        Panel(
            "Requests by outcome",
            "reqps",
            (
                Query(
                    f"sum by (outcome) (instance_outcome:tokenlane_requests:rate1m{where()})",
                    "{{outcome}}",
                ),
            ),
            "client_gone: the client left first. truncated: cut off after it began.",
            stacked=True,
        ),
        Panel(
            "Requests by status",
            "reqps",
            (Query(rate("tokenlane_requests_total", "status"), "{{status}}"),),
            "What clients got; 499 where they left before.",
            stacked=True,
        ),
        Panel(
            "Duration by route, p99",
            "s",
            (Query(quantile(0.99, "tokenlane_request_duration_seconds", "route"), "{{route}}"),),
            "From the end of the request's head to the end of its answer.",
        ),
        Panel(
            "Time to first token",
            "s",
            tuple(
                Query(
                    quantile(share, "tokenlane_time_to_first_token_seconds", "model"),
                    f"p{share * 100:g} {{{{model}}}}",
                )
                for share in (0.5, 0.9, 0.99)
            ),
            "Of streamed answers, as the gateway sees them.",
        ),
        Panel(
            "Time per output token",
            "s",
            tuple(
                Query(
                    quantile(share, "tokenlane_time_per_output_token_seconds", "model"),
                    f"p{share * 100:g} {{{{model}}}}",
                )
                for share in (0.5, 0.99)
            ),
            "Mean of each stream after its first token.",
        ),
        Panel(
            "Connections",
            "short",
            (
                Query(total("tokenlane_connections"), "clients"),
                Query(total("tokenlane_upstream_connections", "state"), "replicas, {{state}}"),
            ),
            "Open sockets on both sides.",
        ),
        Panel(
            "Tokens",
            "short",
            (
                Query(rate("tokenlane_prompt_tokens_total", "model"), "prompt {{model}}"),
                Query(rate("tokenlane_output_tokens_total", "model"), "output {{model}}"),
            ),
            "Per second: prompts as counted here, output as the replicas report it.",
        ),
        Panel(
            "Prompt sizes",
            "short",
            (Query(rate("tokenlane_prompt_size_tokens_bucket", "le"), "{{le}}"),),
            "Prompts per second by their size in tokens.",
            kind="heatmap",
        ),
        Panel(
            "Estimated cost per hour",
            "short",
            (Query(f"3600 * {rate('tokenlane_estimated_cost_total', 'model')}", "{{model}}"),),
            "By the prices of the settings; empty for models without one.",
        ),
    ),
)

_MEDIANS = "instance_model_replica:tokenlane_{}_seconds:p50_rate30s"
_BY_REPLICA = "model, replica"
_AT = "{{replica}} {{model}}"

_REPLICAS = Row(
    "Replicas",
    (
        Panel(
            "Requests by replica",
            "reqps",
            (Query(rate("tokenlane_replica_requests_total", _BY_REPLICA), _AT),),
            "Requests that a replica was chosen for, and those sent on to it.",
            width=6,
        ),
        Panel(
            "Time per output token by replica",
            "s",
            (Query(f"{_MEDIANS.format('time_per_output_token')}{where()}", _AT),),
            "Half of its streams are slower. One line far above the others is a slow replica.",
            width=6,
        ),
        Panel(
            "Time to first token by replica",
            "s",
            (Query(f"{_MEDIANS.format('time_to_first_token')}{where()}", _AT),),
            "Half of its streams begin later; longer prompts count, too.",
            width=6,
        ),
        Panel(
            "Prompt tokens by replica",
            "short",
            (
                Query(rate("tokenlane_prompt_tokens_total", _BY_REPLICA), _AT),
                Query(rate("tokenlane_actual_cached_tokens_total", _BY_REPLICA), f"cached {_AT}"),
            ),
            "Per second, and those of them that the replica had in its cache.",
            width=6,
        ),
        Panel(
            "Requests in flight",
            "short",
            (Query(total("tokenlane_replica_in_flight_requests", "replica"), "{{replica}}"),),
            "From this gateway. Uneven is no fault: a long prefix weighs more than a short queue.",
        ),
        Panel(
            "Queued tokens",
            "short",
            (Query(total("tokenlane_replica_queued_tokens", "replica"), "{{replica}}"),),
            "Uncached prompt tokens of requests without a first byte: what a new one waits for.",
        ),
        Panel(
            "Running and waiting, as replicas say",
            "short",
            (
                Query(total("tokenlane_replica_running_requests", "replica"), "runs {{replica}}"),
                Query(total("tokenlane_replica_waiting_requests", "replica"), "waits {{replica}}"),
            ),
            "vllm:num_requests_running and _waiting, all their clients together.",
        ),
        Panel(
            "Front ends starved",
            "short",
            (
                Query(
                    f"max by (replica) (tokenlane_replica_front_end_starved{where()})",
                    "{{replica}}",
                ),
            ),
            "1 while requests wait for a replica's front end and not for its engine.",
        ),
        Panel(
            "KV cache in use",
            "percentunit",
            (
                Query(
                    f"max by (replica) (tokenlane_replica_kv_usage_ratio{where()})", "{{replica}}"
                ),
            ),
            "Full caches evict, and predictions of cached tokens become too high.",
        ),
        Panel(
            "Failed attempts and retries",
            "reqps",
            (
                Query(
                    rate("tokenlane_upstream_failures_total", "replica, reason"),
                    "{{replica}} {{reason}}",
                ),
                Query(rate("tokenlane_retries_total", "reason"), "sent on: {{reason}}"),
            ),
            "Attempts that failed at a replica, and requests that another one got then.",
        ),
        Panel(
            "Failed probes",
            "cps",
            (
                Query(
                    rate("tokenlane_probe_failures_total", "replica, reason"),
                    "{{replica}} {{reason}}",
                ),
            ),
            "A replica is left out after a few in a row.",
        ),
    ),
)

_ROUTING = Row(
    "Routing",
    (
        Panel(
            "Decisions by reason",
            "reqps",
            (Query(rate("tokenlane_routing_decisions_total", "reason"), "{{reason}}"),),
            "prefix: followed the cache. spill: another held more, but was too busy. cold: nobody "
            "held a prefix worth following.",
            stacked=True,
        ),
        Panel(
            "Cached prompt tokens, predicted and actual",
            "short",
            (
                Query(
                    rate("tokenlane_predicted_cached_tokens_total", "model"), "predicted {{model}}"
                ),
                Query(rate("tokenlane_actual_cached_tokens_total", "model"), "actual {{model}}"),
                Query(
                    f"instance:tokenlane_cached_tokens:predicted_per_actual_rate5m{where()}",
                    "predicted / actual {{instance}}",
                    right_unit="percentunit",
                ),
            ),
            "Tokens per second of requests whose answer reported a number.",
        ),
        Panel(
            "Token mismatches",
            "cps",
            (
                Query(
                    rate("tokenlane_prompt_token_mismatches_total", "model, replica"),
                    "{{model}} {{replica}}",
                ),
            ),
            "A replica makes other prompt tokens than the gateway. Empty is how it should be.",
        ),
        Panel(
            "Ids proven",
            "short",
            (
                Query(
                    f"min by (model, replica, kind) (tokenlane_id_proof{where()})",
                    "{{model}} {{replica}} {{kind}}",
                ),
            ),
            "1 proven, 0 not yet, -1 refuted: what is not proven is neither forwarded nor refused.",
        ),
        Panel(
            "Prompts as ids and as text",
            "cps",
            (Query(rate("tokenlane_forwarded_requests_total", "as, reason"), "{{as}} {{reason}}"),),
            "What replicas get of prompts, and why.",
        ),
        Panel(
            "Ids asked for again",
            "cps",
            (
                Query(
                    rate("tokenlane_id_checks_total", "model, replica, result"),
                    "{{model}} {{replica}} {{result}}",
                ),
            ),
            "A sample of the prompts of replicas that have proven their ids, and one now and then.",
        ),
    ),
)

_FLEET = Row(
    "Other gateways",
    (
        Panel(
            "Gateways and their store",
            "short",
            (
                Query(total("tokenlane_fleet_peers", "instance"), "others seen by {{instance}}"),
                Query(total("tokenlane_fleet_store_up", "instance"), "store up {{instance}}"),
            ),
            "Where gateways share their load (fleet.store). Store away: each goes by its own load.",
        ),
        Panel(
            "Load of the others",
            "short",
            (Query(total("tokenlane_fleet_replica_in_flight_requests", "replica"), "{{replica}}"),),
            "What each gateway counts of the others' requests in flight, summed over gateways.",
        ),
        Panel(
            "Age of what they said",
            "s",
            (Query(total("tokenlane_fleet_news_age_seconds", "instance"), "{{instance}}"),),
            "Since any other gateway was heard. Above fleet.lease_s nobody is counted.",
        ),
        Panel(
            "Bytes to and from the store",
            "Bps",
            (
                Query(rate("tokenlane_fleet_bytes_total", "direction"), "{{direction}}"),
                Query(rate("tokenlane_fleet_unread_messages_total"), "not understood"),
            ),
            "Messages alone, one's own read back included. Not understood: gateways of versions "
            "that are far apart.",
        ),
    ),
)

OVERVIEW = Board(
    "tokenlane",
    "tokenlane",
    (
        _GLANCE,
        Row("What convicts", (SIDE_BY_SIDE,)),
        _TRAFFIC,
        _REPLICAS,
        _ROUTING,
        _FLEET,
    ),
)

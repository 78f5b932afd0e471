"""The rows of those beside the gateway: its replicas, and other gateways."""

from scripts.dashboard.panel import Panel, Query, Row, rate, told, total, where

_MEDIANS = "instance_model_replica:tokenlane_{}_seconds:p50_rate30s"
_BY_REPLICA = "model, replica"
_AT = "{{replica}} {{model}}"

REPLICAS = Row(
    "Replicas",
    (
        Panel(
            "Requests by replica",
            "reqps",
            (
                Query(rate("tokenlane_replica_requests_total", _BY_REPLICA), _AT),
                Query(rate("tokenlane_replica_answers_total", _BY_REPLICA), f"answered {_AT}"),
            ),
            "Requests a replica was chosen for, those sent on to it, and those it answered whole.",
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
                Query(told("tokenlane_replica_running_requests", "replica"), "runs {{replica}}"),
                Query(told("tokenlane_replica_waiting_requests", "replica"), "waits {{replica}}"),
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

FLEET = Row(
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

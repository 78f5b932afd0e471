"""The rows of requests: what was asked and answered, and what routing made of it."""

from scripts.dashboard.panel import Panel, Query, Row, quantile, rate, total, where

TRAFFIC = Row(
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

ROUTING = Row(
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

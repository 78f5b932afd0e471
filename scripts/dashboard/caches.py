"""The third board: what replicas hold, how that is known, and who is left out."""

from scripts.dashboard.glance import GLANCE
from scripts.dashboard.panel import Board, Panel, Query, Row, rate, told, told_rate, total

_HELD = Row(
    "What replicas hold",
    (
        Panel(
            "KV blocks by their events",
            "short",
            (Query(told("tokenlane_kv_blocks", "replica, medium"), "{{replica}} {{medium}}"),),
            "In the replica's own block size. Nothing here: the replica publishes no events.",
        ),
        Panel(
            "How far events are believed",
            "short",
            (
                Query(
                    told("tokenlane_kv_event_standing_info", "replica, standing"),
                    "{{replica}}: {{standing}}",
                ),
            ),
            "complete: they say what the cache holds. partial: they began after it was filled. "
            "none: the gateway goes by what it routed.",
        ),
        Panel(
            "Memory by part",
            "bytes",
            (
                Query(total("tokenlane_memory_bytes", "part"), "{{part}}"),
                Query(total("tokenlane_memory_limit_bytes", "part"), "limit of {{part}}"),
                Query(total("tokenlane_kv_ledger_bytes", "replica"), "ledger of {{replica}}"),
            ),
            "All that is kept for requests, texts, names and peers. The ledgers are the control "
            "plane's, everything else is each worker's own.",
        ),
    ),
)

_EVENTS = Row(
    "KV events",
    (
        Panel(
            "Events",
            "cps",
            (
                Query(
                    told_rate("tokenlane_kv_events_total", "replica, type"), "{{replica}} {{type}}"
                ),
            ),
            "unread: their format is not known. Many removals: the cache is too small.",
        ),
        Panel(
            "Lag",
            "s",
            (Query(told("tokenlane_kv_event_lag_seconds", "replica, rank"), "{{replica}}"),),
            "From a message's making to its use, by both machines' clocks, at the slowest gateway.",
        ),
        Panel(
            "Gaps",
            "short",
            (
                Query(told("tokenlane_kv_event_gaps_total", "replica"), "gaps {{replica}}"),
                Query(
                    told("tokenlane_kv_event_messages_lost_total", "replica"),
                    "lost {{replica}}",
                ),
            ),
            "Since the gateway started, of the gateway with most. A gap that a replay closes costs "
            "nothing.",
        ),
    ),
)

_LEFT_OUT = Row(
    "Left out",
    (
        Panel(
            "Replicas left out",
            "short",
            (
                Query(
                    total("tokenlane_replica_left_out", "replica, reason"),
                    "{{replica}}: {{reason}}",
                ),
            ),
            "Workers that send a replica nothing now, or only a part, and why.",
            width=12,
        ),
        Panel(
            "Ejections and retries refused",
            "cps",
            (
                Query(rate("tokenlane_replica_ejections_total", "replica"), "out: {{replica}}"),
                Query(rate("tokenlane_retries_denied_total"), "retries over the budget"),
            ),
            "Where many retries are refused, the fleet as a whole is failing.",
            width=12,
        ),
    ),
)

CACHES = Board(
    "tokenlane-caches", "tokenlane: replicas' caches", (GLANCE, _HELD, _EVENTS, _LEFT_OUT)
)

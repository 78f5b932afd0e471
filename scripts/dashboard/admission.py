"""The fourth board: who asks, who waits, and who is turned away."""

from scripts.dashboard.glance import GLANCE
from scripts.dashboard.panel import Board, Panel, Query, Row, quantile, rate, total

_WHO = Row(
    "Who asks",
    (
        Panel(
            "Requests by tenant",
            "reqps",
            (Query(rate("tokenlane_tenant_requests_total", "tenant"), "{{tenant}}"),),
            "Where clients have keys. other: those without a good one.",
            stacked=True,
        ),
        Panel(
            "Tokens by tenant",
            "cps",
            (Query(rate("tokenlane_tenant_tokens_total", "tenant, kind"), "{{tenant}} {{kind}}"),),
            "Prompt tokens as the gateway counts them, and output.",
            stacked=True,
        ),
        Panel(
            "Refused for their key",
            "reqps",
            (Query(rate("tokenlane_unauthorized_total", "reason"), "{{reason}}"),),
            "missing, malformed, unknown, expired.",
        ),
    ),
)

_PLACES = Row(
    "Who waits",
    (
        Panel(
            "Requests that have a place, and that wait for one",
            "short",
            (
                Query(total("tokenlane_admitted_requests"), "have a place"),
                Query(total("tokenlane_waiting_requests"), "wait"),
            ),
            "Where places are limited (admission, auth.tenants).",
        ),
        Panel(
            "Wait for a place",
            "s",
            (
                Query(
                    quantile(0.99, "tokenlane_admission_wait_seconds", "priority"),
                    "p99 {{priority}}",
                ),
            ),
            "Of those that got one, by class.",
        ),
        Panel(
            "Connections not accepted yet",
            "short",
            (
                Query(total("tokenlane_accept_queue_connections"), "wait"),
                Query(rate("tokenlane_accept_queue_drops_total"), "dropped per second"),
            ),
            "In the kernel's queues: the loops are too busy to accept. Who waits too long there is "
            "turned away (accept-queue). More workers, or limits that turn requests away.",
        ),
        Panel(
            "Turned away",
            "reqps",
            (
                Query(
                    rate("tokenlane_shed_requests_total", "tenant, reason"), "{{tenant}} {{reason}}"
                ),
            ),
            "For overload, with Retry-After.",
            stacked=True,
        ),
    ),
)

_NAMES = Row(
    "Names and shadows",
    (
        Panel(
            "Requests by name",
            "reqps",
            (Query(rate("tokenlane_named_requests_total", "name, model"), "{{name}}: {{model}}"),),
            "Under the names that the settings give (models.aliases, models.splits), by model.",
            stacked=True,
        ),
        Panel(
            "Copies of requests",
            "reqps",
            (
                Query(
                    rate("tokenlane_shadow_requests_total", "model, outcome"),
                    "{{model}} {{outcome}}",
                ),
            ),
            "Shadow traffic by what became of it. full: more than models.shadow_limit_… allow.",
            stacked=True,
        ),
        Panel(
            "How long copies take",
            "s",
            (Query(quantile(0.99, "tokenlane_shadow_duration_seconds", "model"), "p99 {{model}}"),),
            "To the end of the answer that nobody reads; beside the duration of the requests.",
        ),
    ),
)

ADMISSION = Board(
    "tokenlane-admission", "tokenlane: admission and tenants", (GLANCE, _WHO, _PLACES, _NAMES)
)

"""The fourth board: who asks, who waits, and who is turned away."""

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

ADMISSION = Board("tokenlane-admission", "tokenlane: admission and tenants", (_WHO, _PLACES))

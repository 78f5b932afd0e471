"""docs/metrics.md, from the table of metric families:

    python -m scripts.families > docs/metrics.md

Invariants:
- Whatever `/metrics` may say stands here, from the same table; a test compares.
"""

import sys

from tokenlane.telemetry.metrics.departures import SHOWN_S
from tokenlane.telemetry.metrics.families import FAMILIES, OTHER


def markdown() -> str:
    """Return the page."""
    lines = [
        "# Metrics",
        "",
        "Scrape `/metrics` on the admin port. This page is generated:",
        "`python -m scripts.families > docs/metrics.md`.",
        "",
        "Label sets are closed: models without settings, unknown paths and label sets past a",
        f"family's limit appear as `{OTHER}`. Counters keep counting when a worker is restarted;",
        "gauges are sums over the workers that live. What is labelled with a replica that left, or",
        f"with a model that nobody serves any more, is shown for {SHOWN_S / 60:g} minutes more.",
        "",
        "| name | kind | labels | what |",
        "|---|---|---|---|",
    ]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |")
    lines += ["", "## Buckets", "", "| name | upper bounds |", "|---|---|"]
    for family in FAMILIES:
        if family.buckets:
            bounds = ", ".join(f"{bound:g}" for bound in family.buckets)
            lines.append(f"| `{family.name}` | {bounds} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())

"""`/stalls` as a page.

Invariants:
- The page needs nothing but itself: no script, no file from elsewhere. What stands in it is
  escaped: request ids are the clients' words.
"""

import html
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tokenlane.telemetry.stalls.lateness import QUANTILES


def wants_page(accept: str, asked: str | None) -> bool:
    """Whether to answer with the page. accept: the header. asked: `format` of the query."""
    if asked is not None:
        return asked == "html"
    return "text/html" in accept and "application/json" not in accept


_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em;
       color: #1b1f24; background: #fff; }
table { border-collapse: collapse; margin: 1em 0; width: 100%; }
th, td { text-align: left; padding: .25em .75em; border-bottom: 1px solid #d8dee4;
         vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { margin: .5em 0; white-space: pre-wrap; font-size: 12px; }
summary { cursor: pointer; }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117; } th, td { border-color: #30363d; } }
"""


def page(view: dict[str, Any]) -> str:
    """`view` as one HTML page."""
    causes = Counter(stall["cause"] for stall in view["stalls"])
    kept = ", ".join(f"{cause} {count}" for cause, count in causes.most_common())
    lateness = _table(
        [
            "worker",
            "beats",
            *(name.removesuffix("_s").replace("_", ".") for name in QUANTILES),
            "max",
        ],
        ([str(row["worker"]), str(row["beats"]), *_ms(row)] for row in view["workers"]),
    )
    header = ["time (UTC)", "worker", "ms", "cause", "what was going on"]
    stalls = _table(header, map(_stall_row, view["stalls"]))
    held = _table(header, map(_stall_row, view["held"]))
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>tokenlane: stalls</title><style>{_STYLE}</style></head><body>"
        f"<h1>Stalls</h1><h2>How late the loops were, last {view['window_s']:g} s, in ms</h2>"
        f"{lateness}<h2>The last {len(view['stalls'])} stalls</h2><p>{_text(kept)}</p>{stalls}"
        "<h2>Since the start: where one piece of work held a loop the longest</h2>"
        f"{held}</body></html>\n"
    )


def _ms(row: dict[str, Any]) -> list[str]:
    return [f"{row[name] * 1e3:.2f}" for name in (*QUANTILES, "max_s")]


def _stall_row(stall: dict[str, Any]) -> list[str]:
    at = stall["at"][:23].replace("T", " ")
    return [
        _text(at),
        str(stall["worker"]),
        f"{stall['length_s'] * 1e3:.1f}",
        _text(stall["cause"]),
        _details(stall),
    ]


def _details(stall: dict[str, Any]) -> str:
    frames = stall["stack"]
    count = stall["in_hand_count"]
    requests = [f"{one['request_id']}  {one['route']}  {one['stage']}" for one in stall["in_hand"]]
    if count > len(requests):
        requests.append(f"and {count - len(requests)} more")
    facts = (
        f"CPU of the loop {stall['cpu_s'] * 1e3:.1f} ms, of one piece of work at least "
        f"{stall['held_s'] * 1e3:.1f} ms, of other threads "
        f"{stall['others_cpu_s'] * 1e3:.1f} ms; collector {stall['gc_s'] * 1e3:.1f} ms; "
        f"{stall['waits']} waits"
    )
    top = frames[0] if frames else "no stack"
    return (
        f"<details><summary>{_text(top)}, {count} in hand</summary>"
        f"<pre>{_text(facts)}</pre><pre>{_text(chr(10).join(frames))}</pre>"
        f"<pre>{_text(chr(10).join(requests))}</pre></details>"
    )


def _table(header: list[str], rows: Iterable[list[str]]) -> str:
    """Cells are HTML already; those that look like numbers stand to the right."""
    heads = "".join(f"<th>{_text(name)}</th>" for name in header)
    lines = []
    for row in rows:
        cells = "".join(
            f"<td{' class=n' if cell.replace('.', '').isdigit() else ''}>{cell}</td>"
            for cell in row
        )
        lines.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _text(raw: str) -> str:
    return html.escape(raw)

"""The last stalls of all workers, and how late their loops were: `/stalls`, as JSON and as a page.

Invariants:
- Memory is bounded: the last hundred stalls, whatever their workers' number, the ten since the
  start in which one piece of work held a loop the longest, and one window of lateness per worker
  number.
- The page needs nothing but itself: no script, no file from elsewhere. What stands in it is
  escaped: request ids are the clients' words.
"""

import html
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from tokenlane.telemetry.stalls.lateness import QUANTILES, WINDOW_S, LatenessWindow
from tokenlane.telemetry.stalls.stall import Stall

KEPT_COUNT = 100
HELD_COUNT = 10


class StallLog:
    """What the workers told. clock: rises with time, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stalls: deque[Stall] = deque(maxlen=KEPT_COUNT)
        self._held: list[Stall] = []
        self._windows: dict[int, LatenessWindow] = {}

    def stalled(self, stall: Stall) -> None:
        """A worker's loop was held."""
        self._stalls.append(stall)
        if stall.held_s > (self._held[-1].held_s if len(self._held) == HELD_COUNT else 0.0):
            self._held.append(stall)
            self._held.sort(key=lambda one: one.held_s, reverse=True)
            del self._held[HELD_COUNT:]

    def beats(self, worker: int, lateness: bytes) -> None:
        """How late a worker's latest heartbeats were (packed float32 seconds)."""
        self._windows.setdefault(worker, LatenessWindow()).add(lateness, self._clock())

    def view(self) -> dict[str, Any]:
        """For `/stalls`: the workers' lateness, the stalls, the latest first, and those since the
        start in which one piece of work had a CPU for the longest time, the longest first."""
        now_s = self._clock()
        return {
            "window_s": WINDOW_S,
            "workers": [
                {"worker": worker, **window.summary(now_s)}
                for worker, window in sorted(self._windows.items())
            ],
            "stalls": [
                _told(one) for one in sorted(self._stalls, key=lambda one: one.at_s, reverse=True)
            ],
            "held": [_told(one) for one in self._held],
        }


def _told(stall: Stall) -> dict[str, Any]:
    return {"at": _at(stall.at_s), **msgspec.to_builtins(stall)}


def wants_page(accept: str, asked: str | None) -> bool:
    """Whether to answer with the page. accept: the header. asked: `format` of the query."""
    if asked is not None:
        return asked == "html"
    return "text/html" in accept and "application/json" not in accept


def _at(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


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

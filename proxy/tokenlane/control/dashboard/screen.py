"""The live page for a terminal: the same numbers as lines of text. Pure.

Invariants:
- No line is wider than the terminal, no screen higher.
- Names come from elsewhere: nothing unprintable in them reaches the terminal.
"""

import time
from collections.abc import Iterable, Sequence

from tokenlane.control.dashboard.live import Live

# A piece of a line and its style; "" is plain.
Piece = tuple[str, str]
Line = list[Piece]
# Of a table; a text without a style is plain.
Cells = Sequence[str | Piece]

_CODES = {"good": "32", "warn": "33", "bad": "31", "quiet": "90", "bold": "1", "accent": "36"}
_BLOCKS = "▁▂▃▄▅▆▇█"
_STATES = {
    "up": "good", "ready": "good", "draining": "warn", "starting": "warn", "down": "bad",
    "dead": "bad", "ejected": "bad", "refused": "bad", "full": "warn",
}  # fmt: skip
_LATE_S = 0.01
_VERY_LATE_S = 0.05


def seconds(value: float | None) -> str:
    """`12 ms` and the like."""
    if value is None:
        return "-"
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.1f} ms" if value < 0.00995 else f"{value * 1e3:.0f} ms"
    return f"{value:.1f} s"


def number(value: float | None) -> str:
    """Short, with thousands marked."""
    if value is None:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    if value >= 10_000:
        return f"{value / 1e3:.1f}k"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def percent(value: float | None) -> str:
    """A share of 1."""
    return "-" if value is None else f"{value * 100:.0f} %"


def spark(points: Sequence[float | None], width: int) -> str:
    """The last points as a row of blocks, the highest as high as there is."""
    points = points[-width:]
    high = max((point for point in points if point is not None), default=0.0) or 1.0
    return "".join(
        " " if point is None else _BLOCKS[min(int(point / high * 7.999), 7)] for point in points
    )


def _bar(share: float | None) -> str:
    full = round(min(max(share or 0.0, 0.0), 1.0) * 10)
    return "█" * full + "░" * (10 - full)


def _clean(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _clock(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def _late(value: float | None) -> str:
    if value is None or value < _LATE_S:
        return ""
    return "bad" if value >= _VERY_LATE_S else "warn"


def _table(head: str, rows: Iterable[Cells], right: str) -> list[Line]:
    """Columns as wide as they need. head: titles by `|`; right: `>` or `<` for each column."""
    styled = [[(one, "") if isinstance(one, str) else one for one in row] for row in rows]
    cells = [[(_clean(text), style) for text, style in row] for row in styled]
    titles = [(title, "quiet") for title in head.split("|")]
    widths = [max(len(row[at][0]) for row in [titles, *cells]) for at in range(len(titles))]
    return [
        [
            (f"{text:{side}{width}}  ", style)
            for (text, style), side, width in zip(row, right, widths, strict=True)
        ]
        for row in [titles, *cells]
    ]


def _header(live: Live) -> list[Line]:
    now = live.now
    state = ("serving", "good") if live.unready is None else (_clean(live.unready), "bad")
    return [
        [
            (f"tokenlane {_clean(live.version)}  ", "bold"),
            state,
            (f"  {_clean(live.url)}  policy {_clean(live.policy)}  ", ""),
            (f"{len(live.workers)} worker(s)", ""),
        ],
        [(_clean(live.verdict.text), live.verdict.level)],
        [
            (f"requests {number(now.requests_per_s)} /s  ", ""),
            (f"failed {number(now.failed_per_s)} /s  ", "bad" if now.failed_per_s else ""),
            (f"ttft {seconds(now.ttft_p50_s)}, p99 {seconds(now.ttft_p99_s)}  ", ""),
            (f"cached {percent(now.hit_rate)}  ", ""),
            (f"late {seconds(now.late_p99_s)}, worst ", ""),
            (seconds(now.late_worst_s), _late(now.late_worst_s)),
        ],
        [
            (f"in flight {number(now.in_flight)}  queued {number(now.queued_tokens)} tokens  ", ""),
            (f"tokens in {number(now.input_tokens_per_s)} /s, ", ""),
            (f"out {number(now.output_tokens_per_s)} /s", ""),
        ],
        *_saved(live),
        *_forwarded(live),
    ]


def _saved(live: Live) -> list[Line]:
    row = live.saved
    if row.tokens is None:
        return []
    text = f"caches saved {number(row.tokens)} tokens"
    if row.prefill_s is not None:
        text += f", {number(row.prefill_s)} s of prefill; now worth {number(row.replicas)} replicas"
    return [[(text, "")]]


def _forwarded(live: Live) -> list[Line]:
    """What the replicas got of prompts: ids or text, and why text."""
    if not live.forwarded:
        return []
    sent, why = (
        ", ".join(f"{_clean(row.word)} {percent(row.share)}" for row in counts)
        for counts in (live.forwarded, live.as_text)
    )
    return [[(f"prompts sent as {sent}" + (f"; as text: {why}" if why else ""), "")]]


def _settings(live: Live) -> list[Line]:
    """What became of the settings' file, where anything did, and what is wrong with it."""
    config = live.config
    if config is None or not sum(config.reloads.values()):
        return []
    at = _clock(config.loaded_at_s)
    counts = ", ".join(f"{count} {word}" for word, count in config.reloads.items() if count)
    lines: list[Line] = [[(f"settings read at {at}  reloads: {_clean(counts)}", "quiet")]]
    if config.last.problems:
        why = "; ".join(config.last.problems)
        lines.append([("the settings last read were refused: ", "bad"), (_clean(why), "")])
    if config.last.restart:
        paths = ", ".join(config.last.restart)
        lines.append([("these wait for a restart: ", "warn"), (_clean(paths), "")])
    return lines


def _sparks(live: Live, width: int) -> list[Line]:
    names = {"requests_per_s": "requests/s", "ttft_p50_s": "ttft", "late_worst_s": "late worst"}
    room = max(width - 11, 0)
    rows = {name: spark(live.series.get(key, []), room) for key, name in names.items()}
    return [[(f"{name:10} ", "quiet"), (drawn, "accent")] for name, drawn in rows.items()]


def _replicas(live: Live, limit: int) -> list[Line]:
    rows: list[Cells] = [
        (
            row.id,
            ("starved" if row.starved else "slow", "warn")
            if row.state == "up" and (row.times_slower or row.starved)
            else (row.state, _STATES.get(row.state, "")),
            *map(number, (row.in_flight, row.queued_tokens, row.running, row.waiting)),
            percent(row.kv_usage),
            percent(row.hit_rate),
            (row.ids, "bad" if row.ids.startswith("other") else ""),
        )
        for row in live.replicas[:limit]
    ]
    lines = _table("replica|health|in flight|queued|runs|waits|kv|hits|ids", rows, "<<>>>>>><")
    more = len(live.replicas) - len(rows)
    return [*lines, [(f"and {more} more", "quiet")]] if more else lines


def _peers(live: Live, limit: int) -> list[Line]:
    if live.fleet is None:
        return []
    store = live.fleet.store
    lines: list[Line] = [
        [
            (f"fleet {_clean(live.fleet.name)}  store ", "quiet"),
            (_clean(store), "good" if store == "up" else "bad"),
        ]
    ]
    rows: list[Cells] = [
        (
            row.name,
            (row.version, "" if row.version == live.version else "warn"),
            seconds(row.seen_s),
            *map(number, (row.in_flight, row.queued_tokens)),
            (str(row.unknown_replicas), "warn" if row.unknown_replicas else ""),
        )
        for row in live.fleet.peers[:limit]
    ]
    return [*lines, *_table("gateway|version|seen|in flight|queued|unknown", rows, "<<>>>>")]


def _events(live: Live, limit: int) -> list[Line]:
    """What happened in the last hour, the newest first."""
    return [
        [
            (f"{_clock(row.at_s)}  ", "quiet"),
            (_clean(row.text) + (f": {row.count}" if row.count else ""), row.level),
        ]
        for row in live.events[:limit]
    ]


def _loops(live: Live, limit: int) -> list[Line]:
    rows: list[Cells] = [
        (
            str(row.worker),
            (row.state, _STATES.get(row.state, "")),
            seconds(row.late_p50_s),
            *((seconds(late_s), _late(late_s)) for late_s in (row.late_p99_s, row.late_worst_s)),
            (str(row.restarts), "warn" if row.restarts else ""),
        )
        for row in live.workers[:limit]
    ]
    lines = _table("worker|state|late p50|p99|worst|restarts", rows, "<<>>>>")
    stalls = [row for row in live.stalls if row.total]
    if stalls:
        causes = "  ".join(f"{_clean(row.cause)} {number(row.total)}" for row in stalls)
        lines.append([("stalls by cause  ", "quiet"), (causes, "")])
    return lines


def _ladder(live: Live) -> list[Line]:
    rows: list[Cells] = [
        (
            (row.rung, "warn" if row.rung == "bail" else ""),
            f"{_bar(row.share)} {percent(row.share):>5}",
            number(row.per_s),
            *map(seconds, (row.p50_s, row.p99_s)),
        )
        for row in live.rungs
        if row.share
    ]
    return _table("rung|share|per s|p50|p99", rows, "<<>>>") if rows else []


def _decisions(live: Live, limit: int) -> list[Line]:
    rows: list[Cells] = [
        (
            (_clock(row.at_s), "quiet"),
            (row.reason, "accent"),
            row.replica,
            f"{number(row.cached_tokens)} of {number(row.prompt_tokens)}",
            seconds(row.ttft_s if row.ttft_s is not None else row.duration_s),
            (str(row.status), "bad" if row.status >= 500 else "quiet"),
            (row.why, "quiet"),
        )
        for row in live.decisions[: max(limit, 0)]
    ]
    return _table("routed|reason|to|cached|ttft|status|why", rows, "<<<>>><") if rows else []


def lines(live: Live, width: int, height: int) -> list[Line]:
    """The screen as pieces, not wider or higher than this."""
    few = max(height // 4, 3)
    made: list[Line] = [*_header(live), *_settings(live), [], *_sparks(live, width)]
    blocks = (_replicas(live, few), _events(live, 3), _peers(live, few), _loops(live, few))
    for block in (*blocks, _ladder(live)):
        if block:
            made += [[], *block]
    made += [[], *_decisions(live, height - len(made) - 2)]
    return [_clipped(line, width) for line in made[:height]]


def _clipped(line: Line, width: int) -> Line:
    kept: Line = []
    for text, style in line:
        if width <= 0:
            break
        kept.append((text[:width], style))
        width -= len(text)
    return kept


def draw(live: Live, width: int, height: int, *, colour: bool) -> str:
    """The screen as text, lines ended by newlines."""

    def styled(text: str, style: str) -> str:
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if colour and style else text

    made = lines(live, width, height)
    return "".join("".join(styled(*one) for one in line).rstrip() + "\n" for line in made)

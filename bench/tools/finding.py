"""What an experiment found: tables, curves, the published figure beside ours, and its shape. Pure.

Invariants:
- Every experiment of the bench ends in a Finding, whatever it measured: one text, one JSON, one
  way to draw it.
- The machine's facts are part of it: a number without them says nothing.
- A shape that could not be judged is None, never True.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from bench.tools import machine
from bench.tools.statistics import Cell, cell, table


class Table(msgspec.Struct, frozen=True):
    """Rows under a header; the first column names the row."""

    title: str
    header: list[str]
    rows: list[list[Cell]]


class Series(msgspec.Struct, frozen=True):
    """A named curve. points: (x, y); of bars, x is an index into the plot's labels."""

    name: str
    points: list[tuple[float, float]]


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """A picture. log: axes in powers of ten, of "x" and "y"; labels: what bars stand for."""

    title: str
    x: str
    y: str
    series: list[Series]
    kind: Literal["lines", "dots", "bars"] = "lines"
    log: str = ""
    labels: list[str] = []


class Beside(msgspec.Struct, frozen=True):
    """A published figure and what was measured here."""

    what: str
    published: str
    ours: str


class Shape(msgspec.Struct, frozen=True):
    """A claim about the form of a curve. holds: None where it could not be judged."""

    claim: str
    holds: bool | None
    seen: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment. numbers: what the verdict reads, by name. answers: sentences of the verdict
    that are this experiment's own."""

    name: str
    title: str
    machine: dict[str, Any]
    settings: dict[str, Any] = {}
    tables: list[Table] = []
    plots: list[Plot] = []
    published: list[Beside] = []
    shapes: list[Shape] = []
    remarks: list[str] = []
    numbers: dict[str, float | None] = {}
    answers: list[str] = []


PUBLISHED_HEADER = ["published beside ours", "published", "here"]


def judged(holds: bool | None) -> str:
    """A shape's word."""
    return {True: "as published", False: "NOT as published", None: "not judged"}[holds]


def times(value: float | None, base: float | None) -> str:
    """How many times the base, as text; a dash where that has no meaning."""
    return "-" if value is None or not base else f"{cell(value / base)} x"


def milliseconds(*values: float | None) -> str:
    """Milliseconds as text, joined by an arrow."""
    return " -> ".join(cell(None if value is None else float(value)) for value in values) + " ms"


def few(remarks: Iterable[str], limit: int = 3) -> list[str]:
    """The first remarks, and how many more there are: one busy minute fills no page."""
    given = list(remarks)
    left = len(given) - limit
    return given if left <= 1 else [*given[:limit], f"and {left} more remarks of this kind"]


def bars(title: str, y: str, values: dict[str, float | None], log: str = "") -> Plot:
    """A plot with one bar for each name that has a value."""
    known = {name: value for name, value in values.items() if value is not None}
    points = [(float(index), value) for index, value in enumerate(known.values())]
    return Plot(
        title=title, x="", y=y, series=[Series("", points)], kind="bars", log=log,
        labels=list(known),
    )  # fmt: skip


def text(found: Finding) -> str:
    """The finding for a terminal."""
    lines = [found.title, machine.describe(found.machine)]
    for one in found.tables:
        lines += ["", *([one.title] if one.title else []), table(one.header, one.rows)]
    if found.published:
        rows: list[list[Cell]] = [[one.what, one.published, one.ours] for one in found.published]
        lines += ["", table(PUBLISHED_HEADER, rows)]
    lines += [""] * bool(found.shapes or found.remarks)
    lines += [f"{judged(one.holds)}: {one.claim} ({one.seen})" for one in found.shapes]
    lines += [*found.answers, *found.remarks]
    return "\n".join(lines)


def markdown(found: Finding) -> str:
    """The finding as a section of a page."""
    lines = [f"### {found.name}: {found.title}", ""]
    for one in found.tables:
        lines += [*([f"*{one.title}*", ""] if one.title else []), *_pipes(one.header, one.rows), ""]
    if found.published:
        rows: list[list[Cell]] = [[one.what, one.published, one.ours] for one in found.published]
        lines += [*_pipes(PUBLISHED_HEADER, rows), ""]
    lines += [f"- **{judged(one.holds)}**: {one.claim} ({one.seen})" for one in found.shapes]
    lines += [f"- {remark}" for remark in (*found.answers, *found.remarks)]
    return "\n".join(lines).rstrip() + "\n"


def _pipes(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    texts = [[cell(value).replace("|", "\\|") for value in row] for row in rows]
    return [
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in texts),
    ]

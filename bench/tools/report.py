"""How a bench ends: its table on stdout, its JSON where it was asked for, one line if it cannot.

And how all of them end: one JSON, PNG files, and one HTML page that holds everything, the plots
and the verdict included.
"""

import base64
import html
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.tools import machine
from bench.tools.finding import PUBLISHED_HEADER, Finding, judged
from bench.tools.processes import BenchError
from bench.tools.statistics import Cell, cell

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em;
       color: #222 }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; display: block;
        overflow-x: auto }
td, th { border: 1px solid #ddd; padding: .25em .6em; text-align: right }
td:first-child, th:first-child { text-align: left }
img { max-width: 100%; margin: .5em 0 }
.machine { color: #777; font-size: 12px; white-space: pre-line }
.yes { color: #2c7a3f } .no { color: #b3261e } .open { color: #777 }
.verdict { background: #f3f6fa; border-left: 4px solid #1668b8; padding: .6em 1.2em }
"""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run: latest.json. failed: by experiment, why there is no finding."""

    machine: dict[str, Any]
    scale: str
    seconds: float
    findings: dict[str, Finding]
    failed: dict[str, str] = {}
    verdict: list[str] = []


def write_json(result: dict[str, Any], path: Path) -> None:
    """The result, indented."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result)))


def read(path: Path) -> Report:
    """A latest.json. Raises BenchError where it is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError) as error:
        raise BenchError(f"{path}: no report of `make bench` ({error})") from None


def finish(
    run: Callable[[], dict[str, Any]],
    show: Callable[[dict[str, Any]], str],
    json_path: Path | None,
) -> dict[str, Any]:
    """Runs a bench and reports it; exits with a sentence when it cannot be made here."""
    try:
        result = run()
    except BenchError as error:
        sys.exit(str(error))
    print(show(result))
    if json_path is not None:
        write_json(result, json_path)
    return result


def page(report: Report, pictures: dict[str, list[bytes]], title: str = "tokenlane bench") -> str:
    """Return one HTML page that needs nothing else. pictures: PNG bytes by experiment."""
    parts = [
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title>",
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>",
        (
            f"<p class=machine>{html.escape(machine.describe(report.machine))}\n"
            f"{report.machine['at']}, {report.scale} form, {report.seconds:,.0f} s</p>"
        ),
        "<div class=verdict><h2>Verdict</h2><ul>",
        *(f"<li>{html.escape(line)}</li>" for line in report.verdict),
        "</ul></div>",
        *(
            f"<p class=no>{html.escape(f'{name}: {why}')}</p>"
            for name, why in report.failed.items()
        ),
    ]
    for name, found in report.findings.items():
        parts += _section(found, pictures.get(name, []))
    return "\n".join([*parts, "</body></html>"])


def _section(found: Finding, pictures: Sequence[bytes]) -> list[str]:
    parts = [
        (
            f'<h2 id="{html.escape(found.name)}">{html.escape(found.name)}: '
            f"{html.escape(found.title)}</h2>"
        ),
        f"<p class=machine>{html.escape(machine.describe(found.machine))}</p>",
    ]
    for one in found.tables:
        parts += [f"<p>{html.escape(one.title)}</p>", _html_table(one.header, one.rows)]
    if found.published:
        rows: list[list[Cell]] = [[one.what, one.published, one.ours] for one in found.published]
        parts.append(_html_table(PUBLISHED_HEADER, rows))
    color = {True: "yes", False: "no", None: "open"}
    parts.append("<ul>")
    for shape in found.shapes:
        parts.append(
            f"<li><b class={color[shape.holds]}>{judged(shape.holds)}</b>: "
            f"{html.escape(f'{shape.claim} ({shape.seen})')}</li>"
        )
    parts += [f"<li>{html.escape(line)}</li>" for line in (*found.answers, *found.remarks)]
    parts.append("</ul>")
    for plot, picture in zip(found.plots, pictures, strict=False):
        data = base64.b64encode(picture).decode()
        parts.append(f'<img alt="{html.escape(plot.title)}" src="data:image/png;base64,{data}">')
    return parts


def _html_table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    def line(tag: str, values: Sequence[Cell]) -> str:
        cells = "".join(f"<{tag}>{html.escape(cell(value))}</{tag}>" for value in values)
        return f"<tr>{cells}</tr>"

    return f"<table>{line('th', header)}{''.join(line('td', row) for row in rows)}</table>"

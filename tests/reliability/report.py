"""docs/reliability.md, from the rows and what their tests reached.

    python -m tests.reliability.report [pytest's options]       (`make reliability`)

Invariants:
- What a run reached is kept in results.json, test by test; a later run replaces what it ran anew,
  but a short form never replaces a long one that passed, except in what the gate of O11 saw.
- A figure is one that a test measured (the `figure` fixture, or the gate of tests.held, which
  judges every test that starts a gateway, and so makes it one of row O11); nothing else writes any.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.held import Held
from tests.reliability import rows

PAGE = rows.TESTS.parent / "docs" / "reliability.md"
_RESULTS = Path(__file__).with_name("results.json")
_GATE = "O11"
_FUZZ = rows.TESTS / "fuzz" / "runs.json"
# Tests that no run has which does not ask for them.
_OPT_IN = "tests/vllm/"
_HEAD = """\
# Reliability

68 ways to fail, what is promised for each, and what the tests of that promise reached. A test
carries the id of its row (`@pytest.mark.row("T3")`, or the name of a case of `tests/conformance`);
`tests/reliability/test_rows.py` fails where a row has neither a test nor a reason. Whatever starts
a gateway is a test of O11 too. This page is generated: `make reliability` runs the tests, `make
reliability LONG=--long` in their long forms.
Tests of `tests/vllm` need real vLLM servers and run only where they are asked for (`-m vllm` behind
`python -m tests.reliability.report`). What never ran is not counted as kept but named.
"""


class Results:
    """A pytest plugin: outcomes and figures by test function."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts what ended."""
        properties = dict(report.user_properties)
        ended = report.when == "call" or (report.when == "setup" and not report.passed)
        if not ended or "rows" not in properties:
            return
        found = self.tests.setdefault(
            report.nodeid.partition("[")[0],
            {"form": properties.get("form", "short"), "rows": {}, "figures": []},
        )
        kept = set(str(properties["rows"]).split())
        seen: Any = properties.get("held")
        if seen is not None:
            kept.add(_GATE)
            both = Held(**seen)
            both.add(Held(**found.get("held", {})))
            found["held"] = asdict(both)
        for row in sorted(kept):
            counts = found["rows"].setdefault(row, {})
            counts[report.outcome] = counts.get(report.outcome, 0) + 1
        for name, value in report.user_properties:
            if name == "figure" and value not in found["figures"]:
                found["figures"].append(value)


def merged(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What is known after one more run; tests that are gone are forgotten."""
    known = {name for names in rows.marked().values() for name in names}
    kept = {name: found for name, found in before.items() if name in known}
    for name, found in now.items():
        old = kept.get(name)
        if old is None or found["form"] == "long" or old["form"] == "short":
            kept[name] = found
        elif "held" in found:
            old["held"], old["rows"][_GATE] = found["held"], found["rows"][_GATE]
    return dict(sorted(kept.items()))


def _cell(row: str, names: list[str], tests: dict[str, Any]) -> tuple[str, str]:
    """How the tests of a row ended, and what they reached. names: those that carry it now."""
    counts: dict[str, int] = {}
    figures: list[str] = []
    for found in tests.values():
        for outcome, count in found["rows"].get(row, {}).items():
            counts[outcome] = counts.get(outcome, 0) + count
        if row in found["rows"] and row != _GATE:
            figures += found["figures"]
    if row == _GATE:
        figures.append(_held(tests))
    missing: dict[str, int] = {}
    for name in names:
        if name not in tests or row not in tests[name]["rows"]:
            why = "not run (real vLLM)" if name.startswith(_OPT_IN) else "not run"
            missing[why] = missing.get(why, 0) + 1
    ended = [*sorted(counts.items()), *sorted(missing.items())]
    return ", ".join(f"{count:,} {what}" for what, count in ended), "; ".join(figures)


def _held(tests: dict[str, Any]) -> str:
    """What all tests that start gateways saw of their loops."""
    seen = Held()
    for found in tests.values():
        seen.add(Held(**found.get("held", {})))
    return (
        f"{seen.pieces:,} pieces of work in the tests' own processes, {seen.beats:,} heartbeats of "
        f"{seen.processes:,} gateways in processes of their own; the longest took "
        f"{seen.longest_s * 1e3:.1f} ms of CPU"
    )


def page(tests: dict[str, Any]) -> str:
    """The whole page."""
    known, marked = rows.read(), rows.marked()
    exceptions = [row for row in known.values() if row.exception]
    kept = [row for row in known.values() if not row.exception]
    cells = {row.id: _cell(row.id, marked.get(row.id, []), tests) for row in kept}
    failed = [name for name, (ended, _) in cells.items() if "failed" in ended]
    sound = len(kept) - len(failed)
    broken = f"{len(failed)} failed when last run ({', '.join(failed)}), " if failed else ""
    lines = [
        _HEAD,
        f"{sound} rows are kept by tests, {broken}{len(exceptions)} are exceptions.",
        "",
        "| id | promised | tests | reached |",
        "|---|---|---|---|",
    ]
    for row in kept:
        ended, reached = cells[row.id]
        lines.append(f"| {row.id} | {row.promise} | {ended} | {reached} |")
    if exceptions:
        lines += ["", "## Exceptions", "", "| id | promised | why not |", "|---|---|---|"]
    lines += [f"| {row.id} | {row.promise} | {row.exception} |" for row in exceptions]
    lines += ["", "## Fuzz", "", *_fuzz()]
    return "\n".join(lines) + "\n"


def _fuzz() -> list[str]:
    """What the last long runs of each target did, as written down in tests/fuzz/runs.json."""
    runs = json.loads(_FUZZ.read_text(encoding="utf-8"))
    hours = sum(run["seconds"] for run in runs.values()) / 3600
    return [
        (
            f"The last long runs of `make fuzz`, {hours:.1f} hours in all, at low priority on a "
            "busy machine, ended without a crash:"
        ),
        "",
        "| target | executions | seconds |",
        "|---|---|---|",
        *(f"| {name} | {run['executions']:,} | {run['seconds']:,} |" for name, run in runs.items()),
    ]


def main() -> int:
    """Runs the tests of all rows and writes the page; pytest's exit code."""
    results = Results()
    code = pytest.main(["--rows", "-q", *sys.argv[1:]], plugins=[results])
    before = json.loads(_RESULTS.read_text(encoding="utf-8")) if _RESULTS.exists() else {}
    tests = merged(before, results.tests)
    _RESULTS.write_text(json.dumps(tests, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(tests), encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())

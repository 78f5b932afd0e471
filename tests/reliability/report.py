"""docs/reliability.md, from the rows and what their tests reached.

    python -m tests.reliability.report [pytest's options]       (`make reliability`)

Invariants:
- A row is kept only if all of its tests passed in this very run; a figure is one that a test
  measured in it (the `figure` fixture).
"""

import platform
import sys
from typing import Any

import pytest

from tests.reliability import rows

PAGE = rows.TESTS.parent / "docs" / "reliability.md"
_HEAD = """\
# Reliability

64 ways to fail, what is promised for each, and what the tests of that promise reached. A test
carries the id of its row (`@pytest.mark.row("T3")`, or the name of a case of `tests/conformance`);
`tests/reliability/test_rows.py` fails where a row has neither a test nor a reason. This page is
generated: `make reliability` runs the tests, `make reliability LONG=--long` in their long forms.
"""


class Results:
    """A pytest plugin: the outcome and the figures of every test, by its row."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts what ended."""
        properties = dict(report.user_properties)
        ended = report.when == "call" or (report.when == "setup" and not report.passed)
        for row in str(properties.get("rows", "")).split() if ended else ():
            found = self.rows.setdefault(row, {"passed": 0, "failed": 0, "skipped": 0})
            found[report.outcome] += 1
            figures = [str(value) for name, value in report.user_properties if name == "figure"]
            found.setdefault("figures", []).extend(figures)


def page(results: dict[str, dict[str, Any]], *, long: bool) -> str:
    """The whole page."""
    known = rows.read()
    exceptions = [row for row in known.values() if row.exception]
    kept = [row for row in known.values() if not row.exception]
    form = "long" if long else "short"
    summary = f"{len(kept)} rows are kept by tests, {len(exceptions)} are exceptions. "
    summary += f"Last run: {form} forms, Python {platform.python_version()}."
    lines = [
        _HEAD,
        summary,
        "",
        "| id | promised | tests | reached |",
        "|---|---|---|---|",
    ]
    for row in kept:
        found = results.get(row.id, {"passed": 0, "failed": 0, "skipped": 0, "figures": []})
        counts = [
            f"{found[word]} {word}" for word in ("passed", "failed", "skipped") if found[word]
        ]
        figures = "; ".join(dict.fromkeys(found.get("figures", ())))
        tests = ", ".join(counts) or "not run"
        lines.append(f"| {row.id} | {row.promise} | {tests} | {figures} |")
    lines += ["", "## Exceptions", "", "| id | promised | why not |", "|---|---|---|"]
    lines += [f"| {row.id} | {row.promise} | {row.exception} |" for row in exceptions]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs the tests of all rows and writes the page; pytest's exit code."""
    results = Results()
    code = pytest.main(["--rows", "-q", *sys.argv[1:]], plugins=[results])
    PAGE.write_text(page(results.rows, long="--long" in sys.argv), encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())

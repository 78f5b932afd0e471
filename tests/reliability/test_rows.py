"""Every row is kept by a test or is an exception with a reason, and the page has them all."""

import re
from typing import Any

from tests.reliability import report, rows


def test_every_row_is_kept_or_excepted() -> None:
    kept = set(rows.marked())
    known = rows.read()
    assert len(known) == 68
    assert kept <= set(known)
    excepted = {row.id for row in known.values() if row.exception}
    assert {row.id for row in known.values()} - kept - excepted == set()
    assert kept & excepted == set(), "kept by a test, so no exception"


def test_the_page_has_the_rows() -> None:
    """Figures come from the last long run; promises and tests must be those of today."""
    lines = re.findall(
        r"^\| (\w+) \| (.*?) \|", report.PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    said = {name: promise for name, promise in lines if name in rows.read()}
    assert said == {row.id: row.promise for row in rows.read().values()}


def test_what_did_not_run_is_not_said_to_be_kept() -> None:
    """P4 has tests that run everywhere, and one that asks real vLLM."""
    passed = {"form": "short", "rows": {"P4": {"passed": 4, "skipped": 1}}, "figures": []}
    here, *_, vllm = rows.marked()["P4"]
    assert vllm.startswith("tests/vllm/")

    def cell(tests: dict[str, Any]) -> str:
        (line,) = (one for one in report.page(tests).splitlines() if one.startswith("| P4 "))
        return line.split(" | ")[2]

    others = len(rows.marked()["P4"]) - 1
    assert cell({}) == f"{others} not run, 1 not run (real vLLM)"
    everything = dict.fromkeys(rows.marked()["P4"], passed)
    assert cell({**everything, here: passed}).startswith(f"{4 * others + 4} passed")
    del everything[vllm]
    assert cell(everything).endswith("1 not run (real vLLM)")

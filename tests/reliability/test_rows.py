"""Every row is kept by a test or is an exception with a reason, and the page has them all."""

import re

from tests.reliability import report, rows


def test_every_row_is_kept_or_excepted() -> None:
    kept = set(rows.marked())
    known = rows.read()
    assert len(known) == 64
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

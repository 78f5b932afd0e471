"""nginx and HAProxy under the same corpus: where they do otherwise, the corpus says why."""

import re

import pytest

from tests.conformance import differential
from tests.conformance.corpus import REASONS, cases


@pytest.mark.row("H16")
@pytest.mark.slow
@pytest.mark.parametrize("name", differential.PROXIES)
async def test_every_difference_is_explained(name: str) -> None:
    if name in differential.missing():
        pytest.skip(f"{name} is not here")
    found = await differential.outcomes(name, cases())
    differing = [case for case in cases() if found[case.id] != differential.ours(case)]
    assert {case.id for case in differing if case.differs not in REASONS} == set()
    assert len(differing) < len(cases()) / 2, "the proxy does not serve at all"


def test_the_page_lists_cases_there_are() -> None:
    page = differential.PAGE.read_text(encoding="utf-8")
    assert f"holds {len(cases())} raw inputs" in page
    listed = re.findall(r"^\| `(.*?)` \|.*\| (\w*) \|$", page, re.MULTILINE)
    assert len(listed) > 50
    known = {case.id: case.differs for case in cases()}
    for name, why in listed:
        assert known[name] == why
        assert why in REASONS

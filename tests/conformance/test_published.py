"""The published lists: none of their cases is left out, and each has cases of ours that are run."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.conformance import differential, published
from tests.conformance.corpus import cases

# How many each part of a list has, in the version that published.toml names.
PARTS = {
    "garden": {"server": 48, "transducer": 24, "bonus": 5, "bonus-bonus": 2},
    "h1spec": {"all": 33},
    "llhttp": {
        "connection": 21,
        "content-length": 18,
        "finish": 3,
        "invalid": 24,
        "lenient-header-value-relaxed": 5,
        "lenient-headers": 4,
        "lenient-version": 1,
        "method": 16,
        "pausing": 13,
        "pipelining": 1,
        "sample": 18,
        "transfer-encoding": 31,
        "uri": 11,
    },
}
TOTALS = {"garden": 79, "h1spec": 33, "llhttp": 166}


@pytest.mark.row("H15")
@pytest.mark.parametrize("name", PARTS)
def test_every_published_case_has_ours(name: str, figure: Callable[[str], None]) -> None:
    entries = published.lists()[name].entries
    known = {case.id for case in cases()}
    assert Counter(entry.part for entry in entries) == PARTS[name]
    assert len(entries) == TOTALS[name]
    for entry in entries:
        assert entry.ids
        assert set(entry.ids) <= known, f"{entry.part}, {entry.name}"
        assert len(set(entry.ids)) == len(entry.ids)
        assert not entry.note or entry.note in published.notes()
    figure(f"{len(entries)} of {published.lists()[name].project}")


def test_numbered_cases_are_all_there() -> None:
    """HTTP Garden numbers its payloads; its transducers have no number 8."""
    numbers: dict[str, list[int]] = {}
    for entry in published.lists()["garden"].entries:
        numbers.setdefault(entry.part, []).append(int(entry.name))
    for part, found in numbers.items():
        left_out = {8} if part == "transducer" else set()
        assert found == [one for one in range(1, max(found) + 1) if one not in left_out]


def test_every_note_is_used() -> None:
    used = {entry.note for one in published.lists().values() for entry in one.entries}
    assert used - {""} == set(published.notes())


def test_a_flag_that_forgives_changes_nothing() -> None:
    """What is published with and without such a flag has the same cases of ours."""
    entries = published.lists()["llhttp"].entries
    ids = {(entry.part, entry.name): entry.ids for entry in entries}
    pairs = [
        (entry, ids[entry.part, strict])
        for entry in entries
        for strict in [entry.name.removesuffix(" (lenient)")]
        if strict != entry.name and entry.note and (entry.part, strict) in ids
    ]
    assert len(pairs) > 8
    for entry, of_the_strict in pairs:
        assert entry.ids == of_the_strict, entry.name


def test_the_page_has_the_lists() -> None:
    page = differential.PAGE.read_text(encoding="utf-8")
    assert "\n".join(published.table()) in page

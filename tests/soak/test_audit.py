"""The audit finds what a soak must not leave, and excuses what a killed worker took with it."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.soak.audit import Asked, Books, Kill, problems

WHOLE = Asked("a", 1.0, 1.1, 2.0, 1000, outcome="whole", status=200, ended_s=3.0)
LOST = replace(WHOLE, outcome="lost", status=0)
LOST_FOUND = "1 x lost, not the first on its connection: a"
LINE = {"request_id": "a", "status": 200, "outcome": "ok"}
ELSEWHERE = Kill(2.4, 2.5, frozenset({2000}))
ITS_OWN = Kill(2.4, 2.5, frozenset({1000}))


def audit(
    asked: Asked,
    *lines: dict[str, Any],
    ran: int = 1,
    kills: tuple[Kill, ...] = (),
    counted: int | None = None,
) -> list[str]:
    counted = len(lines) if counted is None else counted
    return problems(Books([asked], lines, Counter({asked.id: ran}), kills, counted))


def test_a_request_that_is_in_all_books() -> None:
    assert audit(WHOLE, LINE) == []
    failed = LINE | {"outcome": "upstream_error"}
    assert audit(replace(WHOLE, outcome="failed"), failed) == []
    assert audit(replace(WHOLE, outcome="left"), ran=0) == []
    assert audit(replace(WHOLE, outcome="left"), LINE | {"outcome": "client_gone"}) == []


@pytest.mark.parametrize(
    ("asked", "lines", "ran", "said"),
    [
        (WHOLE, [LINE, LINE], 1, "written more than once"),
        (WHOLE, [LINE], 2, "executed more than once"),
        (WHOLE, [LINE], 0, "answered without an execution"),
        (WHOLE, [], 1, "whole, and not in the access log"),
        (WHOLE, [LINE | {"outcome": "truncated"}], 1, "truncated in the access log"),
        (WHOLE, [LINE | {"status": 500}], 1, "500 in the access log"),
        (LOST, [LINE], 1, "lost"),
        (replace(WHOLE, outcome="hung"), [LINE], 1, "hung"),
        (replace(WHOLE, outcome="wrong"), [LINE], 1, "wrong"),
        (replace(WHOLE, outcome="open"), [LINE], 1, "open"),
        (replace(WHOLE, outcome="truncated"), [LINE], 1, "truncated to its client"),
    ],
)
def test_what_must_not_be(asked: Asked, lines: list[dict[str, Any]], ran: int, said: str) -> None:
    [problem] = audit(asked, *lines, ran=ran)
    assert said in problem
    assert problem.endswith(": a")


def test_who_is_refused_at_the_door_has_no_line() -> None:
    refused = replace(WHOLE, outcome="refused", status=503, nth=1)
    assert problems(Books([refused], [], Counter(), (), 1, at_the_door=1)) == []
    [problem] = problems(Books([refused], [], Counter(), (), 1))
    assert "refused with its connection, and not in the access log: a" in problem
    later = replace(refused, nth=2)
    assert problems(Books([later], [], Counter(), (), 1, at_the_door=1)) != []


def test_the_counters_must_agree() -> None:
    [problem] = audit(WHOLE, LINE, counted=2)
    assert problem == "2 counted, 1 in the access log, 0 without a line"


def test_a_killed_worker_excuses_its_own_clients_alone() -> None:
    assert audit(LOST, kills=(ITS_OWN,), counted=1) == []
    assert audit(LOST, kills=(ELSEWHERE,)) == [LOST_FOUND]
    # Who came while the kill was prepared may have been dealt to it.
    came = replace(LOST, connecting_s=2.39, connected_s=2.41, port=3000)
    assert audit(came, kills=(ELSEWHERE,)) == []
    early = replace(came, connecting_s=2.38, connected_s=2.39)
    assert audit(early, kills=(ELSEWHERE,)) == [LOST_FOUND]
    # Nor is it what became of a request that another worker wrote of.
    assert audit(LOST, LINE | {"worker": 1}, kills=(ITS_OWN,)) == []
    assert audit(LOST, LINE | {"worker": 0}, kills=(ITS_OWN,)) == [LOST_FOUND]
    # Nothing excuses another answer than one's own.
    [said] = audit(replace(LOST, outcome="wrong"), kills=(ITS_OWN,))
    assert said == "1 x wrong, not the first on its connection: a"


def test_a_line_may_die_with_its_worker_only_around_its_end() -> None:
    assert audit(WHOLE, kills=(Kill(3.1, 3.2, frozenset()),), counted=1) == []
    late = Kill(300.0, 300.1, frozenset())
    assert audit(WHOLE, kills=(late,)) == ["1 x whole, and not in the access log: a"]
    # A stopped worker writes nothing, however long the look at its clients takes.
    slow = Kill(3.1, 15.0, frozenset())
    assert audit(WHOLE, kills=(slow,), counted=1) == []

"""What is looked up in DNS, and what the answers amount to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.control.discovery.dns_names import Absences, Target, target
from tokenlane.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("http://vllm.ns.svc:8000", Target("http", "vllm.ns.svc", 8000)),
        ("https://vllm", Target("https", "vllm", 443)),
        ("http://_http._tcp.vllm.ns.svc", Target("http", "_http._tcp.vllm.ns.svc", None)),
    ],
)
def test_targets(text: str, wanted: Target) -> None:
    assert target(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "vllm:8000", "ftp://vllm", "http://", "http://a:b", "http://a/v1", "http://_x._tcp.a:80",
        "http://user:secret@a:1", "http://:secret@a:x", "user:secret@a",
    ],
)  # fmt: skip
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(ConfigError, match=r"discovery\.dns") as raised:
        target(text)
    assert "secret" not in str(raised.value)


def test_an_address_may_be_missing_for_a_moment() -> None:
    absences = Absences(2)
    assert list(absences.answered({"a", "b"})) == ["a", "b"]
    assert list(absences.answered({"a"})) == ["a", "b"]
    assert list(absences.answered(set())) == ["a", "b"]  # no answer counts for nothing
    assert list(absences.answered({"a", "c"})) == ["a", "b", "c"]
    assert list(absences.answered({"a", "c"})) == ["a", "c"]


@given(st.integers(0, 3), st.lists(st.sets(st.sampled_from("abcd")), max_size=20))
def test_a_replica_stays_as_long_as_one_of_the_last_answers_has_it(
    limit: int, answers: list[set[str]]
) -> None:
    absences, seen, held = Absences(limit), [], []
    for answer in answers:
        held = list(absences.answered(answer))
        if answer:
            seen.append(answer)
    assert set(held) == set().union(*seen[-limit - 1 :])

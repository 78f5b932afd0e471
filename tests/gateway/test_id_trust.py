"""Claims: tables of what may be done with ids, and losses that no stale word undoes."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import PROVEN, demo_tokenizer, replicas
from tokenlane.fleet_state import ALL_KINDS, IdKind, Proof, ProofNews
from tokenlane.gateway.id_trust import Trust
from tokenlane.protocols.bodies import Kind, OtherBody
from tokenlane.protocols.inspection import inspect, kinds_of
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.tokenizer import Tokenizer

URLS = ("http://a:1", "http://b:2")
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("kind", "fields", "kinds"),
    [
        (Kind.COMPLETION, {"prompt": "text"}, 1),
        (Kind.COMPLETION, {"prompt": [1, 2]}, 0),
        (Kind.CHAT, {"messages": MESSAGES}, 3),
        (Kind.CHAT, {"messages": MESSAGES, "tools": [TOOL]}, 7),
        (Kind.CHAT, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "auto"}, 7),
        (Kind.CHAT, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "none"}, 39),
        (
            Kind.CHAT,
            {
                "messages": MESSAGES,
                "tools": [TOOL],
                "tool_choice": msgspec.Raw(b'"n\\u006fne"'),
            },
            39,
        ),
        (Kind.CHAT, {"messages": MESSAGES, "tool_choice": "none"}, 3),
        (Kind.CHAT, {"messages": MESSAGES, "reasoning_effort": "low"}, 11),
        (Kind.CHAT, {"messages": MESSAGES, "chat_template_kwargs": {"a": 1}}, 11),
        (Kind.MESSAGES, {"messages": MESSAGES}, 19),
        (Kind.MESSAGES, {"messages": MESSAGES, "thinking": {"type": "disabled"}}, 27),
        (Kind.RESPONSES, {"input": "hi", "tools": [TOOL]}, 23),
        (Kind.RESPONSES, {"input": "hi", "reasoning": {"effort": "low"}}, 27),
    ],
)
def test_kinds(kind: Kind, fields: dict[str, Any], kinds: int) -> None:
    request = inspect(kind, msgspec.json.encode(fields))
    assert not isinstance(request, OtherBody)
    assert kinds_of(request) == kinds


def trust(*, doubted: bool = False) -> tuple[Trust, list[ProofNews], list[tuple[str, str]]]:
    tokenizer = demo_tokenizer()
    if doubted:
        tokenizer = Tokenizer.load("demo", demo_folder(), fast=False)
        tokenizer.doubts = ("who knows",)
    news: list[ProofNews] = []
    differences: list[tuple[str, str]] = []
    made = Trust(
        lambda model: tokenizer if model == "demo" else None,
        news.append,
        lambda model, replica: differences.append((model, replica)),
    )
    made.update(replicas(URLS))
    return made, news, differences


def test_a_difference_in_an_answer_costs_one_kind_at_one_replica() -> None:
    made, news, differences = trust()
    chats, tools = made.claim("demo", 3), made.claim("demo", 7)
    assert chats.proven == tools.proven == {0, 1}
    assert tools.everywhere
    made.mismatch(1, tools)
    made.mismatch(1, tools)
    assert chats.proven == {0, 1}
    assert chats.everywhere
    assert tools.proven == {0}
    assert tools.refuted == tools.silent == {1}
    assert not made.claim("demo", 7).everywhere
    assert [(one.lost, one.refuted, one.unseen) for one in news] == [(4, 4, 1)]
    assert differences == [("demo", "b:2")]


def test_other_ids_of_a_request_cost_everything_until_it_is_proven_again() -> None:
    made, news, _ = trust()
    options = made.claim("demo", 11)
    made.differs(0, options)
    assert made.proof(0, "demo") == Proof(0, 8, 1, 0, news[0].why, prover=0)
    assert made.claim("demo", 1).proven == {1}
    assert made.claim("demo", 1).refuted == frozenset()


def test_no_older_snapshot_undoes_a_loss() -> None:
    made, news, _ = trust()
    claim = made.claim("demo", 1)
    made.mismatch(0, claim)
    made.update(replicas(URLS))  # was on its way
    assert claim.proven == {1}
    (one, other) = replicas(URLS).replicas
    told = msgspec.structs.replace(replicas(URLS), replicas=(one.with_news(news[0]), other))
    made.update(told)
    assert claim.proven == {1}
    # Of another process nothing is held against it.
    made.update(replicas(URLS, process=1))
    assert claim.proven == {0, 1}


def test_a_refused_connection_ends_what_was_proven_and_refutes_nothing() -> None:
    made, news, differences = trust()
    made.refused(0)
    made.refused(0)
    assert len(news) == 1
    assert made.proof(0, "demo").losses == 1
    claim = made.claim("demo", 1)
    assert claim.proven == {1}
    assert not claim.refuted
    assert not claim.silent
    assert not differences


@pytest.mark.parametrize("doubted", [False, True])
def test_doubt_is_silence(doubted: bool) -> None:
    made, _, _ = trust(doubted=doubted)
    made.update(replicas(URLS, proofs={}))
    claim = made.claim("demo", 3)
    assert claim.proven == frozenset()
    assert claim.silent == ({0, 1} if doubted else set())
    made.update(replicas(URLS))
    assert claim.proven == {0, 1}
    assert not claim.silent


def test_names_that_nobody_has_are_not_remembered() -> None:
    made, _, _ = trust()
    for number in range(100):
        assert made.claim(f"model-{number}", 3).proven == frozenset()
    assert not made.claims
    assert made.claim("demo", 0).everywhere
    assert not made.claim("nobody", 1).everywhere


def test_an_adapter_has_its_models_proof() -> None:
    made, _, _ = trust()
    made.update(
        replicas(URLS, models=("demo", "law"), adapters={"law": "demo"}, proofs={"demo": PROVEN})
    )
    assert made.claim("law", 3).proven == {0, 1}


NEWS = st.builds(
    ProofNews,
    slot=st.just(0),
    process=st.just(0),
    model=st.just("m"),
    losses=st.integers(0, 4),
    proven=st.integers(0, 63),
    forgiven=st.integers(0, 63),
) | st.builds(
    ProofNews,
    slot=st.just(0),
    process=st.just(0),
    model=st.just("m"),
    losses=st.integers(0, 4),
    lost=st.integers(1, 63),
    refuted=st.integers(0, 63),
)


@given(st.lists(NEWS, max_size=12))
def test_losses_only_grow_and_nothing_is_proven_and_refuted(news: list[ProofNews]) -> None:
    proof = Proof()
    for drawn in news:
        one = msgspec.structs.replace(drawn, refuted=drawn.refuted & drawn.lost)
        after = proof.told(one)
        assert after.losses >= proof.losses
        assert not after.proven & after.refuted
        if one.losses != proof.losses:
            assert after is proof
        if one.lost and one.losses == proof.losses:
            assert not after.proven & one.lost
        proof = after
    assert proof.proven <= ALL_KINDS
    assert IdKind(proof.refuted).blamed() in (*IdKind, IdKind(0))


def test_a_request_that_outlives_its_model_goes_on_without_its_proofs() -> None:
    made, _, _ = trust()
    held = made.claim("demo", 3)
    assert held.proven == {0, 1}
    made.update(replicas(URLS, models=("law",)))
    assert (held.proven, held.everywhere) == (frozenset(), False)
    made.update(replicas(URLS, process=1, proofs={}))
    assert held.proven == made.claim("demo", 3).proven == frozenset()

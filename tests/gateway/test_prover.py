"""Proofs: a replica that makes other ids is noticed, and what is not proven is not used."""

import json
import logging
from collections import Counter

import msgspec
import pytest

from tests.raw import TEXT, Peer, Script, Upstream, json_bytes, ok, post, until
from tests.support import Bench, demo_tokenizer, gateway, replicas
from tokenlane.fleet_state import ALL_KINDS, FleetState, IdKind, Proof, ProofNews
from tokenlane.gateway.prover import CALM_S, rest_s
from tokenlane.protocols.bodies import ChatFields, CompletionFields
from tokenlane.telemetry.metrics import families
from tokenlane.tokens.ids import pack


def tokenizing(shift: int, *, status: bytes = b"200 OK", only: str = "") -> Script:
    """A replica with the demo tokenizer, whose ids are off by `shift`; only: those of requests with
    this field."""

    async def script(peer: Peer) -> None:
        tokenizer = demo_tokenizer()
        while True:
            try:
                asked = await peer.asked()
            except EOFError:
                return
            body = json.loads(asked.body)
            off = shift if not only or only in body else 0
            if asked.line.startswith(b"POST /detokenize"):
                told: object = {"prompt": tokenizer.decode(pack(body["tokens"]))}
            elif asked.line.startswith(b"POST /tokenize"):
                if "messages" in body:
                    ids = tokenizer.chat_ids(msgspec.json.decode(asked.body, type=ChatFields))
                else:
                    fields = msgspec.json.decode(asked.body, type=CompletionFields)
                    ids = b"".join(tokenizer.completion_ids(fields))
                tokens = [one + off for one in memoryview(ids).cast("I")]
                told = {"count": len(tokens), "tokens": tokens}
            else:
                told = {"choices": []}
            await peer.send(ok(json_bytes(told)).replace(b"200 OK", status))

    return script


def unproven(*urls: str) -> FleetState:
    return replicas(urls, proofs={})


def proof(bench: Bench, slot: int = 0) -> Proof:
    return bench.gateway.prover.trust.proof(slot, "demo")


async def asked_for_proofs(bench: Bench) -> None:
    """The replicas of the gateway's snapshot appear to the prover."""
    bench.gateway.prover.update(bench.gateway.fleet.state)


async def test_a_replica_that_agrees_proves_everything_once() -> None:
    async with Upstream(tokenizing(0)) as replica:
        state = unproven(replica.url)
        async with gateway(state=state, tokenizer=demo_tokenizer()) as bench:
            claim = bench.gateway.prover.trust.claim("demo", 1)
            assert (claim.proven, claim.everywhere) == (frozenset(), False)
            await asked_for_proofs(bench)
            await until(lambda: proof(bench).proven == ALL_KINDS)
            assert (claim.proven, claim.everywhere) == (frozenset((0,)), True)
            count = len(replica.asked)
            paths = Counter(asked.line.split()[1] for asked in replica.asked)
            assert paths[b"/detokenize"] >= demo_tokenizer().encoder.vocabulary_size // 1024
            known = replicas([replica.url], proofs={"demo": proof(bench)})
            bench.gateway.update(known)
            await asked_for_proofs(bench)
            assert len(replica.asked) == count


async def test_one_that_differs_is_counted_and_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Upstream(tokenizing(1)) as one, Upstream(tokenizing(0)) as other:
        state = unproven(one.url, other.url)
        async with gateway(state=state, tokenizer=demo_tokenizer()) as bench:
            with caplog.at_level(logging.WARNING):
                await asked_for_proofs(bench)
                await until(lambda: proof(bench).refuted == IdKind.COMPLETION)
                await until(lambda: proof(bench, 1).proven == ALL_KINDS)
            assert proof(bench).proven == 0
            claim = bench.gateway.prover.trust.claim("demo", 3)
            assert claim.proven == {1}
            assert claim.silent == {0}
            assert not claim.everywhere
            assert bench.metric(families.MISMATCHES, "demo", one.url[7:]) == 1
            assert bench.metric(families.MISMATCHES, "demo", other.url[7:]) == 0
    assert len(caplog.records) == 1


async def test_one_that_cannot_say_proves_nothing() -> None:
    async with Upstream(tokenizing(1, status=b"404 No")) as replica:
        state = unproven(replica.url, "http://127.0.0.1:9")
        async with gateway(state=state, tokenizer=demo_tokenizer()) as bench:
            await asked_for_proofs(bench)
            await until(lambda: proof(bench).why == "/tokenize: status 404")
            await until(lambda: proof(bench, 1).why != "")
            assert (proof(bench).proven, proof(bench).refuted) == (0, 0)
            body = json_bytes({"model": "demo", "prompt": "some text"})
            await until(lambda: len(replica.asked) == 1)
            await bench.ask(post(TEXT, body))
            assert replica.asked[-1].body == body


async def test_a_kind_is_lost_alone() -> None:
    async with Upstream(tokenizing(1, only="tools")) as replica:
        state = unproven(replica.url)
        async with gateway(state=state, tokenizer=demo_tokenizer()) as bench:
            await asked_for_proofs(bench)
            await until(
                lambda: bool(
                    proof(bench).proven & IdKind.OPTIONS | proof(bench).refuted & IdKind.OPTIONS
                )
            )
            assert proof(bench).state(IdKind.TOOLS) == "refuted"
            assert proof(bench).state(IdKind.CHAT) == "proven"
            trust = bench.gateway.prover.trust
            assert trust.claim("demo", IdKind.COMPLETION | IdKind.CHAT).everywhere
            assert not trust.claim("demo", 7).everywhere


def test_old_news_change_nothing() -> None:
    fresh = Proof()
    proven = fresh.told(ProofNews(0, 0, "m", 0, proven=3))
    assert proven.state(IdKind.CHAT) == "proven"
    lost = proven.told(ProofNews(0, 0, "m", 0, lost=2, refuted=2, unseen=1, why="x"))
    assert (lost.proven, lost.refuted, lost.losses, lost.unseen) == (1, 2, 1, 1)
    # A proof that began before the loss.
    assert lost.told(ProofNews(0, 0, "m", 0, proven=63)) is lost
    again = lost.told(ProofNews(0, 0, "m", 1, proven=2))
    assert (again.proven, again.refuted) == (3, 0)
    assert IdKind(7).blamed() is IdKind.TOOLS
    assert IdKind(0).blamed() == 0


def test_what_only_answers_show_is_asked_about_later_each_time() -> None:
    waits = [rest_s(Proof(refuted=4, losses=count, unseen=count), 1.0) for count in range(16)]
    assert waits[:5] == [1, 1, 2, 4, 8]
    assert waits[-1] == 3600
    assert CALM_S == 60

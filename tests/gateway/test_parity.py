"""Parity: a replica that counts tokens otherwise is noticed, and its model is not trusted."""

import json
import logging

import msgspec
import pytest

from tests.raw import Peer, Script, Upstream, json_bytes, ok, until
from tests.support import Bench, demo_tokenizer, gateway
from tokenlane.protocols.prompt_fields import ChatFields, CompletionFields
from tokenlane.telemetry.metrics import families


def tokenizing(shift: int, *, status: bytes = b"200 OK") -> Script:
    """A replica with the demo tokenizer, whose ids are off by `shift`."""

    async def script(peer: Peer) -> None:
        tokenizer = demo_tokenizer()
        while True:
            try:
                asked = await peer.asked()
            except EOFError:
                return
            body = json.loads(asked.body)
            if "messages" in body:
                ids = tokenizer.chat_ids(msgspec.json.decode(asked.body, type=ChatFields))
            else:
                fields = msgspec.json.decode(asked.body, type=CompletionFields)
                ids = b"".join(tokenizer.completion_ids(fields))
            tokens = [one + shift for one in memoryview(ids).cast("I")]
            answer = ok(json_bytes({"count": len(tokens), "tokens": tokens}))
            await peer.send(answer.replace(b"200 OK", status))

    return script


async def appeared(bench: Bench) -> None:
    """The replicas of the gateway's snapshot were asked all they are asked."""
    parity, fleet = bench.gateway.parity, bench.gateway.fleet
    parity.update(fleet.state, fleet)
    assert parity._tasks
    await until(lambda: not parity._tasks)


async def test_a_replica_that_agrees_is_trusted_and_asked_once() -> None:
    async with (
        Upstream(tokenizing(0)) as replica,
        gateway(replica.url, tokenizer=demo_tokenizer()) as bench,
    ):
        await appeared(bench)
        assert bench.gateway.parity.trusts("demo")
        assert len(replica.asked) == 9
        fleet = bench.gateway.fleet
        bench.gateway.parity.update(fleet.state, fleet)
        assert not bench.gateway.parity._tasks


async def test_one_that_differs_is_counted_and_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        Upstream(tokenizing(1)) as one,
        Upstream(tokenizing(1)) as other,
        gateway(one.url, other.url, tokenizer=demo_tokenizer()) as bench,
    ):
        with caplog.at_level(logging.WARNING):
            await appeared(bench)
        assert not bench.gateway.parity.trusts("demo")
        for replica in (one, other):
            assert bench.metric(families.MISMATCHES, "demo", replica.url[7:]) == 1
    assert len(caplog.records) == 1


async def test_one_that_cannot_say_is_not_judged() -> None:
    async with (
        Upstream(tokenizing(1, status=b"404 No")) as replica,
        gateway(replica.url, "http://127.0.0.1:9", tokenizer=demo_tokenizer()) as bench,
    ):
        await appeared(bench)
        assert bench.gateway.parity.trusts("demo")

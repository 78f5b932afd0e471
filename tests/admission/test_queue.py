"""Admission over sockets: who waits, who is turned away, and what they leave behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from tests.admission.test_auth import ALICE, AUTH, BOB, bearer
from tests.raw import CHAT, Client, Peer, Upstream, answering, chat, chunk, get, ok, post, until
from tests.support import Bench, gateway
from tokenlane.config.settings import AdmissionSettings, RoutingSettings, Settings, Tenant
from tokenlane.fleet_state import Load
from tokenlane.telemetry.metrics import families


class Held:
    """A replica that answers when it is told."""

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(0)
        self.upstream = Upstream(self.script)

    async def script(self, peer: Peer) -> None:
        try:
            while True:
                await peer.asked()
                await self.free.acquire()
                await peer.send(ok())
        except (EOFError, ConnectionError):
            return

    @property
    def asked(self) -> int:
        return len(self.upstream.asked)


def only(**fields: float) -> Settings:
    return Settings(auth=AUTH, admission=AdmissionSettings(**fields))  # type: ignore[arg-type]


async def sent(bench: Bench, plain: bytes, body: bytes | None = None) -> Client:
    client = await bench.client()
    await client.send(post(CHAT, body or chat(), bearer(plain)))
    return client


def admitted(bench: Bench) -> tuple[int, int]:
    assert bench.gateway.admission_queue is not None
    return (
        bench.gateway.admission_queue.admission.running,
        bench.gateway.admission_queue.admission.waiting,
    )


@asynccontextmanager
async def places(settings: Settings) -> AsyncIterator[tuple[Bench, Held]]:
    """A gateway before one replica that holds its answers."""
    held = Held()
    async with held.upstream as upstream, gateway(upstream.url, settings=settings) as bench:
        yield bench, held


async def test_who_waits_is_served_and_health_is_open() -> None:
    async with places(only(concurrency_limit_count=1)) as (bench, held):
        first = await sent(bench, ALICE)
        await until(lambda: held.asked == 1)
        second = await sent(bench, BOB)
        await until(lambda: admitted(bench) == (1, 1))
        assert (await bench.ask(get("/health"), "GET")).status == 200
        assert (await bench.ask(get("/v1/models", bearer(BOB)), "GET")).status == 200
        assert held.asked == 1
        held.free.release()
        assert (await first.answer()).status == 200
        held.free.release()
        assert (await second.answer()).status == 200
        await until(lambda: admitted(bench) == (0, 0))
        assert bench.metric(families.ADMISSION_WAIT, "standard") == 2


@pytest.mark.row("O1")
async def test_a_full_queue_answers_at_once_and_reads_no_body() -> None:
    async with places(only(concurrency_limit_count=1, queue_limit_count=2)) as (bench, held):
        first = await sent(bench, ALICE)
        await until(lambda: held.asked == 1)
        for _ in range(2):
            await sent(bench, ALICE)
        await until(lambda: admitted(bench) == (1, 2))
        client = await bench.client()
        head = post(CHAT, b"x" * 9, bearer(ALICE))[:-9]
        await client.send(head)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (503, "overloaded")
        assert answer.headers["retry-after"] == "1"
        assert bench.metric(families.SHED, "alice", "queue-full") == 1
        # Bob has nothing waiting yet: Alice's second gives way.
        await sent(bench, BOB)
        await until(lambda: bench.metric(families.SHED, "alice", "displaced") == 1)
        assert admitted(bench) == (1, 2)
        for _ in range(3):
            held.free.release()
        assert (await first.answer()).status == 200
        await until(lambda: admitted(bench) == (0, 0))


async def test_nobody_waits_longer_than_the_deadline() -> None:
    async with places(only(concurrency_limit_count=1, queue_deadline_s=0.01)) as (bench, held):
        first = await sent(bench, ALICE)
        await until(lambda: held.asked == 1)
        answer = await (await sent(bench, BOB)).answer()
        assert (answer.status, answer.error["code"]) == (503, "overloaded")
        assert bench.metric(families.SHED, "bob", "deadline") == 1
        assert admitted(bench) == (1, 0)
        held.free.release()
        assert (await first.answer()).status == 200


async def test_a_tenants_own_limit_is_429() -> None:
    settings = Settings(
        auth=structs.replace(AUTH, tenants={"alice": Tenant(concurrency_limit_count=1)}),
        admission=AdmissionSettings(queue_deadline_s=0.01),
    )
    async with places(settings) as (bench, held):
        first = await sent(bench, ALICE)
        await until(lambda: held.asked == 1)
        answer = await (await sent(bench, ALICE)).answer()
        assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
        assert int(answer.headers["retry-after"]) >= 1
        other = await sent(bench, BOB)
        await until(lambda: held.asked == 2)
        for _ in range(2):
            held.free.release()
        for client in (first, other):
            assert (await client.answer()).status == 200


async def test_who_leaves_while_waiting_leaves_nothing() -> None:
    async with places(only(concurrency_limit_count=1)) as (bench, held):
        first = await sent(bench, ALICE)
        await until(lambda: held.asked == 1)
        waiting = [await sent(bench, BOB) for _ in range(5)]
        await until(lambda: admitted(bench) == (1, 5))
        for client in waiting:
            client.close()
        await until(lambda: admitted(bench) == (1, 0))
        first.close()
        await until(lambda: admitted(bench) == (0, 0))
        assert bench.gateway.admission_queue is not None
        assert not bench.gateway.admission_queue.waiting
        held.free.release()
        held.free.release()
        assert (await (await sent(bench, BOB)).answer()).status == 200


async def test_a_prompts_tokens_are_free_at_the_first_byte() -> None:
    async with Upstream(answering(ok())) as upstream:
        settings = only(queued_limit_tokens=10)
        async with gateway(upstream.url, settings=settings) as bench:
            for _ in range(5):
                answer = await bench.ask(post(CHAT, chat("words " * 100), bearer(ALICE)))
                assert answer.status == 200
            assert bench.gateway.admission_queue is not None
            await until(lambda: admitted(bench) == (0, 0))
            assert bench.gateway.admission_queue.admission.tokens == 0


TENANT = structs.replace(AUTH, tenants={"alice": Tenant(queued_limit_tokens=30)})


@pytest.mark.parametrize(
    ("settings", "together", "rank"),
    [
        (only(queued_limit_tokens=30), 1, "standard"),
        (Settings(auth=TENANT), 1, "standard"),
        (only(concurrency_limit_count=2, long_prompt_tokens=10), 2, "batch"),
        (only(concurrency_limit_count=2), 2, "standard"),
    ],
    ids=["all", "tenant", "long", "none"],
)
async def test_a_chunked_body_that_comes_after_its_head_counts(
    settings: Settings, together: int, rank: str
) -> None:
    head = post(CHAT, b"", bearer(ALICE)).replace(
        b"content-length: 0", b"transfer-encoding: chunked"
    )
    async with places(settings) as (bench, held):
        clients = [await bench.client() for _ in range(2)]
        for client in clients:
            await client.send(head)
        await until(lambda: len(bench.gateway.in_hand) == 2)
        for client in clients:
            await client.send(chunk(chat("words " * 10)) + chunk(b""))
        await until(lambda: admitted(bench) == (together, 2 - together))
        await until(lambda: held.asked == together)
        for _ in clients:
            held.free.release()
        for client in clients:
            assert (await client.answer()).status == 200
        assert bench.metric(families.ADMISSION_WAIT, rank) == 2


async def test_a_replica_gets_no_more_than_its_fill() -> None:
    one, other = Held(), Held()
    settings = Settings(routing=RoutingSettings(replica_limit_count=1))
    async with one.upstream, other.upstream:
        async with gateway(one.upstream.url, other.upstream.url, settings=settings) as bench:
            clients = [await bench.client() for _ in range(2)]
            for client in clients:
                await client.send(post(CHAT, chat()))
            await until(lambda: one.asked == other.asked == 1)
            answer = await bench.ask(post(CHAT, chat()))
            assert (answer.status, answer.error["code"]) == (503, "replicas_full")
            assert answer.headers["retry-after"] == "1"
            for replica in (one, other):
                replica.free.release()
            for client in clients:
                assert (await client.answer()).status == 200
            await until(lambda: bench.board.load(0) == bench.board.load(1) == Load(0, 0))

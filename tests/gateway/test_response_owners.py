"""Responses of one tenant that another asks for by name: they are not there for it."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.control.test_supervisor import Gateway as GatewayProcess
from tests.control.test_supervisor import until
from tests.raw import (
    RESPONSES,
    Answer,
    Client,
    Peer,
    Upstream,
    answering,
    get,
    json_bytes,
    ok,
    post,
    stream,
)
from tests.support import Bench, demo_tokenizer, gateway
from tokenlane.config.settings import AuthSettings, Key, Settings
from tokenlane.gateway.kept_responses import KeptResponses
from tokenlane.routing.candidates import Eligible
from tokenlane.routing.response_homes import ResponseHomes
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet
from tokenlane.simulator.subprocess_fleet import FleetProcess

A, B = "sk-of-a", "sk-of-b"
KEYS = tuple(
    Key(digest=sha256(key.encode()).hexdigest(), tenant=tenant)
    for key, tenant in ((A, "a"), (B, "b"))
)
SETTINGS = Settings(auth=AuthSettings(keys=KEYS))


def head(key: str) -> str:
    return f"content-type: application/json\r\nauthorization: Bearer {key}\r\n"


@asynccontextmanager
async def serving(count: int = 2) -> AsyncIterator[Bench]:
    simulated = SimulatorSettings(store_responses=True)
    async with SimulatedFleet(simulated, tokenizer=demo_tokenizer()) as fleet:
        urls = await fleet.start(count)
        async with gateway(*urls, settings=SETTINGS, tokenizer=demo_tokenizer()) as bench:
            yield bench


async def respond(bench: Bench, key: str, **fields: Any) -> Answer:
    body = {"model": "demo", "input": "hello", "max_output_tokens": 2, **fields}
    return await bench.ask(post(RESPONSES, json_bytes(body), head(key)))


async def all_of(bench: Bench, key: str, name: str) -> list[Answer]:
    """What comes of reading, cancelling and continuing a response."""
    return [
        await bench.ask(get(f"{RESPONSES}/{name}", head(key)), "GET"),
        await bench.ask(post(f"{RESPONSES}/{name}/cancel", b"", head(key))),
        await respond(bench, key, previous_response_id=name),
    ]


def refused(answer: Answer, name: str) -> bool:
    """In vLLM's words."""
    return answer.status == 404 and answer.error == {
        "message": f"Response with id '{name}' not found.",
        "type": "invalid_request_error",
        "param": "response_id",
        "code": 404,
    }


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_is_there_for_its_tenant_alone(streamed: bool) -> None:
    async with serving() as bench:
        made = await respond(bench, A, stream=streamed)
        name = (
            made.body.split(b'"id":"')[1].split(b'"')[0].decode() if streamed else made.json["id"]
        )
        for answer in await all_of(bench, B, name):
            assert refused(answer, name)
        read, cancelled, went_on = await all_of(bench, A, name)
        assert (read.status, cancelled.status, went_on.status) == (200, 400, 200)
        for answer in await all_of(bench, A, "resp_none"):
            assert refused(answer, "resp_none")


async def test_a_stream_has_an_owner_from_its_first_event_on() -> None:
    """Who leaves in the middle may come back for it."""
    created = b'event: response.created\ndata: {"response":{"id":"resp_1"},"type":"x"}\n\n'
    begun = stream(created).removesuffix(b"0\r\n\r\n")
    async with Upstream(answering(begun, ok(b'{"id":"resp_1"}'))) as replica:
        async with gateway(replica.url, settings=SETTINGS) as bench:
            body = json_bytes({"model": "demo", "input": "hello", "stream": True})
            client = await bench.client()
            await client.send(post(RESPONSES, body, head(A)))
            await client.through(b"resp_1")
            client.close()
            replica.script = answering(ok(b'{"id":"resp_1"}'))
            read, _, _ = await all_of(bench, A, "resp_1")
            assert (read.status, read.json) == (200, {"id": "resp_1"})
            assert refused((await all_of(bench, B, "resp_1"))[0], "resp_1")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_too_long_to_read_has_an_owner(streamed: bool) -> None:
    long = b'{"id":"resp_1","instructions":"%b"}' % (b"x" * 400_000)
    event = b'event: response.created\ndata: {"response":%b,"type":"x"}\n\n' % long
    done = b'event: response.completed\ndata: {"type":"x"}\n\n'
    answers = answering(stream(event, done) if streamed else ok(long), ok())
    async with Upstream(answers) as replica:
        async with gateway(replica.url, settings=SETTINGS) as bench:
            assert (await respond(bench, A, stream=streamed)).whole
            replica.script = answering(ok())
            client = await bench.ask(get(f"{RESPONSES}/resp_1", head(A)), "GET")
            assert client.status == 200
            assert refused((await all_of(bench, B, "resp_1"))[0], "resp_1")


async def test_so_has_one_that_comes_in_small_pieces_first() -> None:
    long = ok(b'{"id":"resp_1","instructions":"%b"}' % (b"x" * 400_000))
    begun = long.index(b"resp_1")

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(long[: begun + 3], 1)
        await peer.send(long[begun + 3 :])
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                await peer.asked()
                await peer.send(ok())

    async with Upstream(script) as replica:
        async with gateway(replica.url, settings=SETTINGS) as bench:
            assert (await respond(bench, A)).whole
            read = await bench.ask(get(f"{RESPONSES}/resp_1", head(A)), "GET")
            assert read.status == 200


@pytest.mark.parametrize("written", ["\\u0072esp_1", 'resp_1", "previous_response_id": "resp_2'])
async def test_a_name_in_other_words_is_nobodys(written: str) -> None:
    async with Upstream(answering(ok(b'{"id":"resp_1"}'))) as replica:
        async with gateway(replica.url, settings=SETTINGS) as bench:
            assert (await respond(bench, A)).status == 200
            body = f'{{"model":"demo","input":"x","previous_response_id":"{written}"}}'
            for key in (A, B):
                answer = await bench.ask(post(RESPONSES, body.encode(), head(key)))
                assert answer.status == 404
        assert len(replica.asked) == 1


async def test_who_makes_one_under_anothers_name_gets_no_part_of_it() -> None:
    """vLLM lets a request name its response."""
    async with Upstream(answering(ok(b'{"id":"resp_1"}'))) as replica:
        async with gateway(replica.url, settings=SETTINGS) as bench:
            assert (await respond(bench, A)).status == 200
            assert (await respond(bench, B, request_id="resp_1")).status == 200
            assert refused((await all_of(bench, B, "resp_1"))[0], "resp_1")
            assert (await all_of(bench, A, "resp_1"))[0].status == 200


async def test_without_keys_all_are_everybodys() -> None:
    async with Upstream(answering(ok(b'{"id":"resp_1"}'))) as replica:
        async with gateway(replica.url) as bench:
            for answer in await all_of(bench, "x", "resp_other"):
                assert answer.status == 200


def test_who_makes_many_makes_nobody_elses_be_forgotten() -> None:
    homes, everywhere = ResponseHomes(limit_count=10), Eligible((0, 1), panic=False)
    for name in ("a1", "a2", "a3"):
        homes.learn(name, 1, "a")
    for number in range(100):
        homes.learn(f"b{number}", 0, "b")
    assert len(homes) == 10
    assert all(homes.owns(name, "a") for name in ("a1", "a2", "a3"))
    assert homes.first("a1", everywhere, "a").slots == (1,)
    assert homes.first("a1", everywhere, "b") is everywhere
    assert homes.owns("b99", "b")
    assert not homes.owns("b0", "b")


async def test_what_this_worker_does_not_know_the_control_plane_says() -> None:
    asked: list[tuple[int, str]] = []
    told: list[tuple[str, int, str]] = []

    def ask(number: int, name: str) -> bool:
        asked.append((number, name))
        return True

    kept = KeptResponses(lambda *said: told.append(said), ask)
    kept.made(1, "a", "mine")
    assert (told, await kept.owns("mine", "a")) == ([("mine", 1, "a")], True)
    loop = asyncio.get_running_loop()
    waiting = [loop.create_task(kept.owns("other", tenant)) for tenant in "ab"]
    waiting.append(loop.create_task(kept.owns("none", "a")))
    await asyncio.sleep(0)
    for (number, _), (slot, tenant) in zip(asked, ((0, "a"), (0, "a"), (-1, "")), strict=True):
        kept.told(number, slot, tenant)
    assert await asyncio.gather(*waiting) == [True, False, False]
    assert kept.homes.first("other", Eligible((0, 1), panic=False), "a").slots == (0,)


async def test_a_name_that_no_replica_gives_is_not_asked_about() -> None:
    asked: list[str] = []

    def ask(_: int, name: str) -> bool:
        asked.append(name)
        return False

    kept = KeptResponses(ask=ask)
    assert not await kept.owns("x" * 257, "a")
    assert not await kept.owns("x", "a")
    assert asked == ["x"]


async def test_where_nobody_can_be_asked_it_is_nobodys() -> None:
    assert not await KeptResponses().owns("r1", "a")


@pytest.mark.slow
def test_all_workers_know_whose_a_response_is(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        json.dumps(
            {"auth": {"keys": [{"digest": one.digest, "tenant": one.tenant} for one in KEYS]}}
        )
    )

    def asks(gateway: GatewayProcess, requests: list[bytes]) -> list[Answer]:
        async def each() -> list[Answer]:
            answers = []
            for request in requests:
                client = await Client.connect(gateway.port)
                method = request.split(b" ", 1)[0].decode()
                answers.append(await client.ask(request, method))
                client.close()
            return answers

        return asyncio.run(each())

    body = json_bytes({"model": "demo", "input": "hello", "max_output_tokens": 1})
    with FleetProcess(1, free_ports(1), ("--store-responses", "true")) as fleet:
        argv = ("serve", "--config", str(file), "--backend", *fleet.urls, "--workers", "2")
        with GatewayProcess(*argv) as gateway:
            made = asks(gateway, [post(RESPONSES, body, head(A))] * 8)
            names = [answer.json["id"] for answer in made]

            def seen(key: str) -> set[int]:
                reads = [get(f"{RESPONSES}/{name}", head(key)) for name in names for _ in range(3)]
                return {answer.status for answer in asks(gateway, reads)}

            assert (seen(A), seen(B)) == ({200}, {404})
            workers = gateway.status()["workers"]
            for worker in workers:
                os.kill(worker["pid"], signal.SIGKILL)

            def back() -> bool:
                now = gateway.status()["workers"]
                return all(
                    one["state"] == "ready" and one["pid"] != before["pid"]
                    for one, before in zip(now, workers, strict=True)
                )

            until(back)
            assert (seen(A), seen(B)) == ({200}, {404})
            assert gateway.stop() == 0


@pytest.mark.slow
def test_hints_that_the_supervisor_has_not_heard_yet_hide_no_response(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    keys = [{"digest": one.digest, "tenant": one.tenant} for one in KEYS]
    file.write_text(json.dumps({"auth": {"keys": keys}, "routing": {"block_tokens": 1}}))
    small = json_bytes({"model": "demo", "input": "hello", "max_output_tokens": 1})

    async def make(port: int) -> list[str]:
        names = []
        for number in range(8):
            client = await Client.connect(port)
            # Two of which all that is told is more than may wait.
            for one in (2 * number, 2 * number + 1):
                ids = [one + 1] * 100_000
                long = json_bytes({"model": "demo", "prompt": ids, "max_tokens": 1})
                assert (await client.ask(post("/v1/completions", long, head(A)))).status == 200
            names.append((await client.ask(post(RESPONSES, small, head(A)))).json["id"])
            client.close()
        return names

    async def read(port: int, name: str) -> int:
        client = await Client.connect(port)
        answer = await client.ask(get(f"{RESPONSES}/{name}", head(A)), "GET")
        client.close()
        return answer.status

    with FleetProcess(1, free_ports(1), ("--store-responses", "true")) as fleet:
        argv = ("serve", "--config", str(file), "--backend", *fleet.urls, "--workers", "2")
        with GatewayProcess(*argv) as gateway:
            os.kill(gateway.process.pid, signal.SIGSTOP)
            try:
                names = asyncio.run(make(gateway.port))
            finally:
                os.kill(gateway.process.pid, signal.SIGCONT)

            def found() -> bool:
                return {asyncio.run(read(gateway.port, name)) for name in names * 4} == {200}

            until(found)
            assert gateway.stop() == 0

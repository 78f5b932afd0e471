"""A replica that fails, seen from its client: one test per failure."""

import asyncio
import json

import pytest

from tests.simulator.client import CHAT, TEXT, Client, ask, chat, until
from tests.simulator.conftest import FleetMaker
from tokenlane.simulator.faults import Fault

STREAM = chat(max_tokens=4, stream=True)


async def test_refuse_closes_the_port_and_keeps_it(make_fleet: FleetMaker) -> None:
    fleet = await make_fleet(token_interval_s=60.0)
    replica = fleet.replicas[0]
    busy, idle = [await Client.connect(replica.url) for _ in range(2)]
    busy.send(CHAT, STREAM)
    await busy.head()
    await replica.set_fault(Fault("refuse"))
    with pytest.raises(ConnectionRefusedError):
        await Client.connect(replica.url)
    assert await idle.eof() == b""
    assert replica.drive.engine.running == 1
    replica.clear_fault("refuse")
    await replica.listening.wait()
    assert (await ask(replica.url, "/health", method="GET")).status == 200
    assert replica.drive.engine.running == 1
    for client in (busy, idle):
        await client.close()


async def test_refuse_ends_by_itself(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    async with asyncio.TaskGroup() as group:  # watched from before, or it may be over by then
        group.create_task(until(lambda: not replica.listening.is_set()))
        await ask(replica.url, "/sim/fault", {"kind": "refuse", "for_s": 0.02})
    await replica.listening.wait()
    assert (await ask(replica.url, CHAT, chat())).status == 200


async def test_kill_ends_everything_and_comes_back_empty(make_fleet: FleetMaker) -> None:
    fleet = await make_fleet(token_interval_s=60.0)
    replica = fleet.replicas[0]
    await ask(replica.url, CHAT, chat("hello " * 50, max_tokens=1))
    client = await Client.connect(replica.url)
    client.send(CHAT, STREAM)
    await client.head()
    before = replica.drive
    assert len(before.engine.cache) > 0
    await replica.set_fault(Fault("kill"))
    answer = await client.eof()
    assert b"[DONE]" not in answer
    with pytest.raises(ConnectionRefusedError):
        await Client.connect(replica.url)
    replica.clear_fault()
    await replica.listening.wait()
    assert len(replica.drive.engine.cache) == 0
    assert replica.drive.started_s > before.started_s
    await until(lambda: before.engine.running == 0)
    await client.close()


async def test_hang_reads_and_never_answers(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("hang", count=1))
    client = await Client.connect(replica.url)
    client.send(CHAT, chat())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await client.reader.read(1)
    assert (await ask(replica.url, CHAT, chat())).status == 200
    await client.close()


async def test_close_without_a_byte(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("close", count=1))
    client = await Client.connect(replica.url)
    client.send(CHAT, chat())
    assert await client.eof() == b""
    await client.close()


async def test_garbage_is_no_http(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("garbage"))
    client = await Client.connect(replica.url)
    client.send(CHAT, chat())
    answer = await client.eof()
    assert answer
    assert not answer.startswith(b"HTTP/")
    await client.close()


@pytest.mark.parametrize(
    ("status", "kind"), [(503, "Service Unavailable"), (418, "I'm a Teapot"), (599, "Error")]
)
async def test_status(make_fleet: FleetMaker, status: int, kind: str) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("status", status=status, message="no"))
    answer = await ask(replica.url, CHAT, STREAM)
    error = {"message": "no", "type": kind, "param": None, "code": status}
    assert (answer.status, answer.json) == (status, {"error": error})


@pytest.mark.parametrize("after_chunks", [0, 1, 3, 4, 99])
async def test_stream_dies_after_tokens(make_fleet: FleetMaker, after_chunks: int) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("die-mid-stream", after_chunks=after_chunks))
    answer = await ask(replica.url, CHAT, STREAM)
    assert not answer.whole
    contents = [event["choices"][0]["delta"].get("content") for event in answer.events]
    assert len([text for text in contents if text]) == min(after_chunks, 4)
    assert "[DONE]" not in answer.events
    assert replica.drive.engine.running == 0


async def test_stream_dies_at_every_byte(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    body, headers = chat(max_tokens=2, stream=True), "x-request-id: same\r\n"
    whole = (await ask(replica.url, CHAT, body, headers=headers)).body
    for cut in range(0, len(whole) + 40, 37):
        await replica.set_fault(Fault("die-mid-stream", after_bytes=cut))
        answer = await ask(replica.url, CHAT, body, headers=headers)
        assert not answer.whole
        assert len(answer.body) == min(cut, len(whole))


async def test_whole_answer_dies_short_of_its_length(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    length = int((await ask(replica.url, CHAT, chat())).headers["content-length"])
    for cut in (None, 0, 10, 10**6):
        await replica.set_fault(Fault("die-mid-stream", after_bytes=cut))
        answer = await ask(replica.url, CHAT, chat())
        expected = length // 2 if cut is None else min(cut, length - 1)
        assert (answer.whole, len(answer.body)) == (False, expected)


async def test_reset_instead_of_a_clean_close(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("die-mid-stream", after_chunks=2, reset=True))
    client = await Client.connect(replica.url)
    client.send(CHAT, STREAM)
    with pytest.raises(ConnectionResetError):
        await client.eof()
    await client.close()


async def test_stall_keeps_the_connection(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("stall", after_chunks=1, count=1))
    client = await Client.connect(replica.url)
    client.send(CHAT, STREAM)
    await client.head()
    assert [b'"role"' in await client.event(), b'"content"' in await client.event()] == [True] * 2
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await client.reader.read(1)
    assert replica.in_flight == 1
    await client.close()
    await until(lambda: replica.in_flight == 0)


@pytest.mark.parametrize("after_chunks", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_abort_after_tokens(make_fleet: FleetMaker, after_chunks: int, stream: bool) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("abort", after_chunks=after_chunks))
    answer = await ask(replica.url, TEXT, {"prompt": "a b", "max_tokens": 4, "stream": stream})
    assert answer.whole
    if stream:
        *tokens, done = answer.events
        finishes = [event["choices"][0]["finish_reason"] for event in tokens]
        assert (finishes, done) == ([None] * (after_chunks - 1) + ["abort"], "[DONE]")
    else:
        assert answer.json["choices"][0]["finish_reason"] == "abort"
        assert answer.json["usage"]["completion_tokens"] == after_chunks


async def test_abort_without_a_token(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("abort"))
    answer = (await ask(replica.url, CHAT, chat())).json
    assert answer["choices"][0]["finish_reason"] == "abort"
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["usage"]["completion_tokens"] == 0
    # vLLM 0.32 writes no event for an output without text and ids, not even the last.
    role, done = (await ask(replica.url, CHAT, STREAM)).events
    assert (role["choices"][0]["delta"]["role"], done) == ("assistant", "[DONE]")


@pytest.mark.parametrize("after_chunks", [0, 2])
async def test_engine_death_in_a_stream(make_fleet: FleetMaker, after_chunks: int) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("error-event", after_chunks=after_chunks))
    answer = await ask(replica.url, CHAT, STREAM)
    assert (answer.status, answer.whole) == (200, True)
    *_, error, done = answer.events
    assert done == "[DONE]"
    assert error["error"]["type"] == "InternalServerError"
    assert 'data: {"error": {"message": ' in answer.body.decode()
    assert len(answer.events) == after_chunks + 3
    whole = await ask(replica.url, CHAT, chat())
    assert (whole.status, whole.json["error"]) == (500, error["error"])


async def test_slow_and_back(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet(prefill_tokens_per_s=1000.0)).replicas[0]
    await replica.set_fault(Fault("slow", factor=7.0))
    assert replica.drive.engine.slowness == 7.0
    replica.clear_fault("slow")
    assert replica.drive.engine.slowness == 1.0


async def test_drain_keeps_health_and_aborts_what_is_new(make_fleet: FleetMaker) -> None:
    fleet = await make_fleet(token_interval_s=0.001)
    replica = fleet.replicas[0]
    old = await Client.connect(replica.url)
    old.send(CHAT, STREAM)
    await old.head()
    await replica.set_fault(Fault("drain"))
    new = asyncio.gather(ask(replica.url, CHAT, chat()))
    assert (await ask(replica.url, "/health", method="GET")).status == 200
    events = b""
    while chunk := await old.event():
        events += chunk
    assert events.endswith(b"data: [DONE]\n\n")
    assert not new.done()
    replica.clear_fault("drain")
    (answer,) = await new
    assert (answer.status, answer.json["choices"][0]["finish_reason"]) == (200, "abort")
    await old.close()


async def test_unhealthy_serves_on(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("unhealthy", for_s=0.05))
    assert (await ask(replica.url, "/health", method="GET")).status == 503
    assert (await ask(replica.url, CHAT, chat())).status == 200


async def test_timed_faults_end(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("refuse", for_s=0.01))
    async with asyncio.timeout(10.0):
        await replica.listening.wait()
    assert replica.faults.listed() == []


async def test_faults_on_any_path(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("status", paths=("/health",), count=1))
    answers = [await ask(replica.url, "/health", method="GET") for _ in range(2)]
    assert [answer.status for answer in answers] == [500, 200]
    assert json.loads(answers[0].body)["error"]["code"] == 500


async def test_repr_shows_live_state(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    await ask(replica.url, CHAT, chat("hello " * 20))
    assert "running=0 waiting=0 blocks=" in repr(replica)
    assert repr(replica).endswith("in_flight=0>")

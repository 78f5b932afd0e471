"""The official client against a gateway: what it relies on, and that it never takes half an answer
for a whole one (its reader raises nothing when a stream just ends)."""

import time
from typing import Any

import openai
import pytest

from tests.clients.scene import client_of, simulated
from tests.raw import STREAM_HEAD, TOKEN, Peer, Upstream, answering, chunk, until
from tests.support import gateway
from tokenlane.simulator.faults import Fault
from tokenlane.telemetry.metrics import families

MESSAGES: Any = [{"role": "user", "content": "Say something about rivers."}]


async def gather(stream: Any, got: list[Any]) -> None:
    """All chunks of a stream, as far as they come."""
    async for one in stream:
        got += [one]


async def test_a_chat() -> None:
    async with simulated() as (client, _, _):
        made = await client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=5)
        assert made.choices[0].message.content
        assert made.choices[0].finish_reason == "length"
        assert made.usage is not None
        assert made.usage.completion_tokens == 5
        assert made._request_id
        named = await client.chat.completions.create(
            model="demo", messages=MESSAGES, extra_headers={"x-request-id": "mine-1"}
        )
        assert named._request_id == "mine-1"


async def test_a_streamed_chat() -> None:
    async with simulated() as (client, _, _):
        stream = await client.chat.completions.create(
            model="demo",
            messages=MESSAGES,
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [one async for one in stream]
        assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
        assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "length"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 8
        assert stream.response.headers["x-request-id"]


PROMPTS: list[Any] = ["hello", ["hello", "world"], [1, 2, 3], [[1, 2], [3]]]


@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
async def test_completions(prompt: Any) -> None:
    async with simulated() as (client, _, _):
        made = await client.completions.create(model="demo", prompt=prompt, max_tokens=3)
        assert len(made.choices) == (2 if prompt in (PROMPTS[1], PROMPTS[3]) else 1)
        stream = await client.completions.create(
            model="demo", prompt=prompt, max_tokens=3, stream=True
        )
        assert [one async for one in stream]


async def test_the_gateway_counts_as_the_replica_does() -> None:
    async with simulated(1) as (client, bench, _):
        for content in ("a", "ä\U0001f30a", "word " * 500, "<|im_end|>"):
            message: Any = [{"role": "user", "content": content}]
            for _ in range(2):
                made = await client.chat.completions.create(model="demo", messages=message)
                assert made.usage is not None
        replica = bench.gateway.fleet[0].state.id
        assert bench.metric(families.MISMATCHES, "demo", replica) == 0
        assert bench.metric(families.PREDICTED_CACHED, "demo") == bench.metric(
            families.ACTUAL_CACHED, "demo"
        )
        assert bench.metric(families.ACTUAL_CACHED, "demo") > 0


async def test_models() -> None:
    async with simulated() as (client, _, _):
        listed = await client.models.list()
        assert [model.id for model in listed.data] == ["demo"]


async def test_a_gone_client_frees_its_replica() -> None:
    async with simulated(1) as (client, bench, fleet):
        fleet.replicas[0].faults.set(Fault("stall", after_chunks=3))
        stream = await client.chat.completions.create(model="demo", messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await until(lambda: bench.idle)


async def test_an_unknown_model() -> None:
    async with simulated(max_retries=2) as (client, _, _):
        with pytest.raises(openai.NotFoundError) as failed:
            await client.chat.completions.create(model="other", messages=MESSAGES)
        error = failed.value
        assert (error.status_code, error.code, error.param) == (404, "model_not_found", "model")
        assert error.type == "NotFoundError"
        assert error.request_id
        assert "model" in error.message


async def test_a_replicas_own_refusal_passes() -> None:
    async with simulated() as (client, _, _):
        with pytest.raises(openai.BadRequestError) as failed:
            await client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=-1)
        assert failed.value.request_id
        assert failed.value.message


async def test_a_bad_request_of_the_gateways_finding() -> None:
    async with simulated() as (client, _, _):
        with pytest.raises(openai.BadRequestError) as failed:
            await client.chat.completions.create(
                model="demo", messages=MESSAGES, extra_body={"stream": "perhaps"}
            )
        error = failed.value
        assert (error.code, error.param) == ("invalid_type", "stream")
        assert error.type == "invalid_request_error"
        assert error.request_id


async def test_an_unknown_path() -> None:
    async with simulated() as (client, _, _):
        with pytest.raises(openai.NotFoundError) as failed:
            await client.files.list()
        assert failed.value.code == "not_found"
        assert failed.value.request_id


async def test_nobody_is_there() -> None:
    """Retry-After is obeyed; one attempt of the gateway's is not multiplied by the client's."""
    async with gateway() as bench, client_of(bench, max_retries=1) as client:
        started_s = time.monotonic()
        with pytest.raises(openai.InternalServerError) as failed:
            await client.chat.completions.create(model="demo", messages=MESSAGES)
        assert 0.9 < time.monotonic() - started_s < 10.0
        assert failed.value.status_code == 503
        assert failed.value.code == "replicas_down"
        assert bench.outcomes() == {("503", "gateway_error"): 2}


async def test_a_gateway_that_retried_is_not_asked_again() -> None:
    busy = b"HTTP/1.1 503 X\r\ncontent-length: 2\r\n\r\n{}"
    async with Upstream(answering(busy)) as one, Upstream(answering(busy)) as other:
        async with gateway(one.url, other.url) as bench:
            async with client_of(bench, max_retries=2) as client:
                with pytest.raises(openai.InternalServerError):
                    await client.chat.completions.create(model="demo", messages=MESSAGES)
        assert len(one.asked) + len(other.asked) == 2


async def test_a_replica_that_fails_before_it_answers() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.close()

    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        async with client_of(bench) as client:
            with pytest.raises(openai.InternalServerError) as failed:
                await client.chat.completions.create(model="demo", messages=MESSAGES)
            assert (failed.value.status_code, failed.value.code) == (502, "upstream_failed")
            assert failed.value.type == "server_error"
            assert failed.value.request_id


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("after_chunks", [1, 4])
async def test_a_replica_that_dies_between_events(reset: bool, after_chunks: int) -> None:
    async with simulated(1) as (client, bench, fleet):
        fault = Fault("die-mid-stream", after_chunks=after_chunks, reset=reset)
        fleet.replicas[0].faults.set(fault)
        stream = await client.chat.completions.create(model="demo", messages=MESSAGES, stream=True)
        got: list[Any] = []
        with pytest.raises(openai.APIError):
            await gather(stream, got)
        assert got
        assert bench.outcomes() == {("200", "truncated"): 1}


async def test_a_replica_that_dies_within_an_event() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(STREAM_HEAD + chunk(TOKEN) + chunk(TOKEN[:20]))
        peer.close()

    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        async with client_of(bench) as client:
            stream = await client.chat.completions.create(
                model="demo", messages=MESSAGES, stream=True
            )
            # The connection breaks off: whatever the client makes of it, it is an error.
            with pytest.raises(openai.APIConnectionError):
                await gather(stream, [])


async def test_a_whole_answer_that_is_cut() -> None:
    async with simulated(1) as (client, _, fleet):
        fleet.replicas[0].faults.set(Fault("die-mid-stream"))
        with pytest.raises(openai.InternalServerError) as failed:
            await client.chat.completions.create(model="demo", messages=MESSAGES)
        assert failed.value.code == "upstream_failed"


async def test_a_tool() -> None:
    """Simulated replicas call none; what is said of them counts as the replica counts."""
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with simulated(1) as (client, bench, _):
        made = await client.chat.completions.create(model="demo", messages=MESSAGES, tools=[tool])
        bare = await client.chat.completions.create(model="demo", messages=MESSAGES)
        assert made.usage is not None
        assert bare.usage is not None
        assert made.usage.prompt_tokens > bare.usage.prompt_tokens
        replica = bench.gateway.fleet[0].state.id
        assert bench.metric(families.MISMATCHES, "demo", replica) == 0


async def test_embeddings() -> None:
    async with simulated() as (client, _, _):
        made = await client.embeddings.create(model="demo", input=["a", "b"])
        assert [len(one.embedding) for one in made.data] == [8, 8]


async def test_a_response() -> None:
    async with simulated() as (client, _, _):
        made = await client.responses.create(model="demo", input="hello", max_output_tokens=5)
        assert made.output_text
        assert made.status == "incomplete"
        assert made.usage is not None
        assert made.usage.output_tokens == 5
        assert made._request_id


async def test_a_streamed_response() -> None:
    async with simulated() as (client, bench, _):
        async with client.responses.stream(model="demo", input="hello") as stream:
            events = [event.type async for event in stream]
            made = await stream.get_final_response()
        assert events[0] == "response.created"
        assert events[-1] == "response.completed"
        assert events.count("response.output_text.delta") > 1
        assert made.output_text
        assert bench.outcomes() == {("200", "ok"): 1}


async def test_a_response_that_is_kept() -> None:
    async with simulated(3) as (client, bench, _):
        first = await client.responses.create(model="demo", input="hello", max_output_tokens=5)
        again = await client.responses.retrieve(first.id)
        assert (again.id, again.output_text) == (first.id, first.output_text)
        made = await client.responses.create(
            model="demo", input="and then?", previous_response_id=first.id, max_output_tokens=5
        )
        assert made.usage is not None
        assert first.usage is not None
        assert made.usage.input_tokens > first.usage.input_tokens
        with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
            await client.responses.cancel(made.id)
        with pytest.raises(openai.NotFoundError, match="not found"):
            await client.responses.retrieve("resp_none")
        # vLLM has no way to delete one.
        with pytest.raises(openai.APIStatusError, match="only GET") as refused:
            await client.responses.delete(made.id)
        assert (refused.value.status_code, refused.value.code) == (405, "method_not_allowed")
        assert bench.outcomes()["200", "ok"] == 3


@pytest.mark.parametrize("after_chunks", [1, 4])
async def test_a_replica_that_dies_within_a_response(after_chunks: int) -> None:
    async with simulated(1) as (client, bench, fleet):
        fault = Fault("die-mid-stream", after_chunks=after_chunks)
        fleet.replicas[0].faults.set(fault)
        stream = await client.responses.create(model="demo", input="hello", stream=True)
        got: list[Any] = []
        with pytest.raises(openai.APIError) as failed:
            await gather(stream, got)
        assert got
        assert "replica" in failed.value.message
        assert bench.outcomes() == {("200", "truncated"): 1}


async def test_a_response_of_an_unknown_model() -> None:
    async with simulated() as (client, _, _):
        with pytest.raises(openai.NotFoundError) as failed:
            await client.responses.create(model="other", input="hello")
        assert (failed.value.code, failed.value.param) == ("model_not_found", "model")

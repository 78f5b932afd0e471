"""The fleet as its users meet it: the official client, many streams, several replicas."""

import asyncio
import time

import openai
import pytest

from tests.simulator.client import CHAT, TEXT, Client, ask, chat
from tests.simulator.conftest import FleetMaker
from tokenlane.errors import ConfigError
from tokenlane.simulator.faults import Fault
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Say something."},
]


@pytest.fixture
async def client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)


async def test_openai_chat(client: openai.AsyncOpenAI) -> None:
    async with client:
        answer = await client.chat.completions.create(
            model="demo", messages=MESSAGES, max_completion_tokens=7
        )
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 7
        assert answer.usage.prompt_tokens_details is not None
        stream = await client.chat.completions.create(
            model="demo",
            messages=MESSAGES,
            max_completion_tokens=7,
            stream=True,
            stream_options={"include_usage": True},
        )
        text, usage = "", None
        async for chunk in stream:
            usage = chunk.usage or usage
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
        assert text == answer.choices[0].message.content
        assert usage is not None
        assert usage.total_tokens == answer.usage.total_tokens


async def test_openai_other_endpoints(client: openai.AsyncOpenAI) -> None:
    async with client:
        assert [model.id async for model in client.models.list()] == ["demo"]
        answer = await client.completions.create(model="demo", prompt=["a", "b"], max_tokens=3)
        assert [choice.index for choice in answer.choices] == [0, 1]
        vectors = await client.embeddings.create(
            model="demo", input="hello", encoding_format="float"
        )
        assert len(vectors.data[0].embedding) == 8


async def test_openai_errors(client: openai.AsyncOpenAI) -> None:
    async with client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nope", messages=MESSAGES)
        assert missing.value.type == "NotFoundError"
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="demo", messages=[])


async def test_openai_sees_engine_death_in_a_stream(make_fleet: FleetMaker) -> None:
    replica = (await make_fleet()).replicas[0]
    await replica.set_fault(Fault("error-event", after_chunks=1))
    async with openai.AsyncOpenAI(base_url=replica.url + "/v1", api_key="none") as client:
        stream = await client.chat.completions.create(model="demo", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass


async def test_replicas_share_nothing_but_the_tokenizer(make_fleet: FleetMaker) -> None:
    fleet = await make_fleet(3)
    urls = [replica.url for replica in fleet.replicas]
    assert len(set(urls)) == 3
    body = {"prompt": list(range(1, 100)), "max_tokens": 2}
    for url in (urls[0], urls[0], urls[1]):
        assert (await ask(url, TEXT, body)).status == 200
    assert [stats.hit_tokens for stats in fleet.stats()] == [96, 0, 0]
    assert [stats.prefilled_tokens for stats in fleet.stats()] == [102, 99, 0]
    assert [stats.generated_tokens for stats in fleet.stats()] == [4, 2, 0]


async def test_reset_prefix_cache_forgets(make_fleet: FleetMaker) -> None:
    fleet = await make_fleet()
    url = fleet.replicas[0].url
    body = {"prompt": list(range(1, 100)), "max_tokens": 2}
    await ask(url, TEXT, body)
    assert (await ask(url, "/reset_prefix_cache")).json == {"success": True}
    answer = (await ask(url, TEXT, body)).json
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_long_prompts_are_tokenized_beside_the_loop(make_fleet: FleetMaker) -> None:
    url = (await make_fleet()).replicas[0].url
    words = " ".join(str(number) for number in range(20_000))
    answer = await ask(url, TEXT, {"prompt": words, "max_tokens": 1})
    again = await ask(url, TEXT, {"prompt": words, "max_tokens": 1})
    tokens = answer.json["usage"]["prompt_tokens"]
    assert tokens > 20_000
    details = again.json["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == (tokens - 1) // 16 * 16


async def test_many_streams_keep_their_times(make_fleet: FleetMaker) -> None:
    url = (await make_fleet(token_interval_s=0.01)).replicas[0].url
    clients = [await Client.connect(url) for _ in range(50)]
    started_s = time.monotonic()
    for client in clients:
        client.send(CHAT, chat(max_tokens=11, stream=True))
    answers = await asyncio.gather(*(client.answer() for client in clients))
    assert all(answer.chunks == 13 and answer.whole for answer in answers)
    assert time.monotonic() - started_s >= 0.1
    for client in clients:
        await client.close()


async def test_a_folder_without_a_tokenizer_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="tokenizer of demo"):
        SimulatedFleet(SimulatorSettings(folder="/nowhere"))

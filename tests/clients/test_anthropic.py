"""Anthropic's client against a gateway, unchanged: messages, streams, and which error means what.

The library is loaded where it is used: it takes seconds.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import pytest

from tests.clients.scene import serving
from tests.raw import Upstream, answering
from tests.support import Bench, gateway
from tokenlane.simulator.faults import Fault
from tokenlane.telemetry.metrics import families

pytestmark = pytest.mark.slow
ASKED: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 6,
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "Say something about rivers."}],
}


@asynccontextmanager
async def client_of(bench: Bench, **options: Any) -> AsyncIterator[Any]:
    options = {"max_retries": 0, "timeout": 20.0, "api_key": "none", **options}
    url = f"http://127.0.0.1:{bench.port}"
    async with import_module("anthropic").AsyncAnthropic(base_url=url, **options) as client:
        yield client


async def gather(stream: Any, got: list[str]) -> None:
    """The types of all events, as far as they come."""
    async for event in stream:
        got += [event.type]


async def test_messages() -> None:
    async with serving() as (bench, _), client_of(bench) as client:
        made = await client.messages.create(**ASKED)
        assert made.content[0].text
        assert (made.stop_reason, made.usage.output_tokens) == ("max_tokens", 6)
        assert made._request_id
        counted = await client.messages.count_tokens(
            **{name: ASKED[name] for name in ("model", "system", "messages")}
        )
        usage = made.usage
        assert counted.input_tokens == usage.input_tokens + usage.cache_creation_input_tokens

        async with client.messages.stream(**ASKED) as stream:
            texts = [text async for text in stream.text_stream]
            whole = await stream.get_final_message()
        assert "".join(texts) == whole.content[0].text == made.content[0].text
        assert whole.usage.cache_read_input_tokens == bench.metric(
            families.PREDICTED_CACHED, "demo"
        )
        models = await client.models.list()
        assert [model.id for model in models.data] == ["demo"]
        assert {outcome for _, outcome in bench.outcomes()} == {"ok"}


async def test_errors() -> None:
    anthropic = import_module("anthropic")
    async with serving() as (bench, fleet), client_of(bench) as client:
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await client.messages.create(**ASKED | {"model": "other"})
        assert unknown.value.body["error"]["type"] == "not_found_error"
        assert unknown.value.request_id == unknown.value.body["request_id"]
        with pytest.raises(anthropic.BadRequestError) as refused:
            await client.messages.create(**ASKED | {"max_tokens": 10**9})
        assert refused.value.body["type"] == "error"

        for after_chunks in (1, 4):
            fault = Fault("die-mid-stream", after_chunks=after_chunks)
            for replica in fleet.replicas:
                replica.faults.set(fault)
            got: list[str] = []
            stream = await client.messages.create(**ASKED, stream=True)
            with pytest.raises(anthropic.APIError):
                await gather(stream, got)
            assert "content_block_delta" in got
            assert "message_stop" not in got


async def test_a_gateway_that_retried_is_not_asked_again() -> None:
    anthropic = import_module("anthropic")
    busy = b"HTTP/1.1 503 X\r\ncontent-length: 2\r\n\r\n{}"
    async with Upstream(answering(busy)) as one, Upstream(answering(busy)) as other:
        async with gateway(one.url, other.url) as bench:
            async with client_of(bench, max_retries=2) as client:
                with pytest.raises(anthropic.APIStatusError):
                    await client.messages.create(**ASKED)
        assert len(one.asked) + len(other.asked) == 2


async def test_nobody_is_there() -> None:
    anthropic = import_module("anthropic")
    async with gateway() as bench, client_of(bench) as client:
        with pytest.raises(anthropic.APIStatusError) as failed:
            await client.messages.create(**ASKED)
        assert failed.value.status_code == 503
        assert failed.value.body["error"]["type"] == "overloaded_error"
        assert failed.value.response.headers["retry-after"] == "1"

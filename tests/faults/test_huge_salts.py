"""Names that a client makes up, megabytes long: nothing keeps them when their requests are over."""

import gc
import tracemalloc

import pytest

from tests.admission.test_auth import ALICE, AUTH, bearer
from tests.raw import CHAT, RESPONSES, TEXT, Upstream, answering, chat, json_bytes, ok, post
from tests.support import Bench, demo_tokenizer, gateway, replicas
from tokenlane.config.settings import AuthSettings, Settings
from tokenlane.tokens.tokenizer import Tokenizer

LONG_BYTES = 1024 * 1024
COUNT = 8
# Long enough for the caches of openings (512 characters, from the second time on) and prefixes.
WORDS = "a few words. " * 400


async def kept_bytes(bench: Bench, upstream: Upstream, headers: str) -> int:
    """What stays of as many requests with long names as follow one of each kind."""
    client = await bench.client()

    async def ask(mark: str, length: int) -> None:
        name = mark * length
        short = json_bytes({"model": "demo", "prompt": WORDS[:600], "cache_salt": name})
        for path, body in (
            (CHAT, chat(WORDS, cache_salt=name)),
            (TEXT, short),
            (TEXT, short[:-1] + b" }"),
            (RESPONSES, json_bytes({"input": "x", "previous_response_id": name, "model": "demo"})),
        ):
            # With tenants, a response that nobody saw made is nobody's.
            wanted = 404 if headers and path == RESPONSES else 200
            assert (await client.ask(post(path, body, headers))).status == wanted
        upstream.asked.clear()

    for number in range(2):
        await ask(chr(ord("A") + number), 100)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(COUNT):
            await ask(chr(ord("a") + number), LONG_BYTES)
        await ask("z", 100)  # a connection may hold its last body
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.row("O5")
@pytest.mark.slow
@pytest.mark.parametrize("auth", [AuthSettings(), AUTH], ids=["open", "tenants"])
@pytest.mark.parametrize("tokenizer", [None, demo_tokenizer()], ids=["no-tokenizer", "demo"])
async def test_no_cache_keeps_what_a_client_calls_itself(
    auth: AuthSettings, tokenizer: Tokenizer | None
) -> None:
    headers = bearer(ALICE) if auth is AUTH else ""
    async with Upstream(answering(ok())) as upstream:
        settings = Settings(auth=auth)
        async with gateway(upstream.url, settings=settings, tokenizer=tokenizer) as bench:
            assert await kept_bytes(bench, upstream, headers) < COUNT * LONG_BYTES / 4


@pytest.mark.row("O5")
async def test_a_model_that_nobody_serves_is_no_name_to_keep() -> None:
    """Also while some replica has not said what it serves."""
    async with Upstream(answering(ok())) as upstream:
        state = replicas([upstream.url], models=())
        async with gateway(upstream.url, state=state, tokenizer=demo_tokenizer()) as bench:
            answer = await bench.ask(post(CHAT, chat(model="m" * LONG_BYTES)))
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
            assert (await bench.ask(post(CHAT, chat(model="m")))).status == 200

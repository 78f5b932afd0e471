"""A tenant that sends without end leaves others what they use, up to their share of the index."""

import pytest

from tests.admission.test_auth import ALICE, AUTH, BOB, bearer
from tests.raw import TEXT, Upstream, answering, json_bytes, ok, post
from tests.support import demo_tokenizer, gateway
from tokenlane.config.settings import RoutingSettings, Settings

CAPACITY_BLOCKS = 100


def completion(first: int, blocks: int) -> bytes:
    """A prompt of ids: no two with another first id share a block."""
    prompt = [first, *range(1, 16 * blocks)]
    return json_bytes({"model": "demo", "prompt": prompt, "max_tokens": 1})


@pytest.mark.row("S9")
@pytest.mark.slow
@pytest.mark.parametrize(("keep_s", "kept"), [(600.0, True), (0.0, False)])
async def test_one_tenant_floods_the_index(keep_s: float, kept: bool) -> None:
    """Alice has ten prompts of four blocks in use, Bob sends ten times what the index holds."""
    routing = RoutingSettings(index_limit_blocks=CAPACITY_BLOCKS, tenant_keep_s=keep_s)
    settings = Settings(auth=AUTH, routing=routing)
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(upstream.url, settings=settings, tokenizer=demo_tokenizer()) as bench,
    ):
        client = await bench.client()

        async def cached_tokens(plain: bytes, first: int, blocks: int) -> int:
            answer = await client.ask(post(TEXT, completion(first, blocks), bearer(plain)))
            assert answer.status == 200
            return int(answer.headers["x-tokenlane-cached-tokens"])

        for name in range(10):
            assert await cached_tokens(ALICE, name, 4) == 0
        for name in range(100):
            assert await cached_tokens(BOB, 100 + name, 10) == 0
        found = [await cached_tokens(ALICE, name, 4) for name in range(10)]
        # The last token of a prompt is computed always, and with it its block.
        assert found == [48 if kept else 0] * 10
        # Bob's own last prompts are known too.
        assert await cached_tokens(BOB, 199, 10) == 144
        assert bench.gateway.router.index.held_blocks(0) <= 5 * CAPACITY_BLOCKS

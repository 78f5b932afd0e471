"""Completions that begin as earlier ones did, cut between words: the ids are those of the whole."""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import many
from tests.support import demo_tokenizer
from tests.tokens.encode.test_word_cuts import PIECES, loader
from tests.tokens.models import SHARED_NAMES
from tokenlane.config.settings import TokenSettings
from tokenlane.prompt import Rung
from tokenlane.protocols.bodies import CompletionBody, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.encode.word_cuts import GRID_CHARS
from tokenlane.tokens.model_tokenizers import ModelTokenizers
from tokenlane.tokens.service import Outcome, TokenService
from tokenlane.tokens.tokenizer import Tokenizer

NAMES = ["demo", "split", "metaspace", "lines", *SHARED_NAMES]
SPECIALS = ["<|im_start|>user\n", "<|im_end|>\n", "</s>"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    return loader(tmp_path_factory)


def service(tokenizer: Tokenizer, hop_s: float) -> TokenService:
    """hop_s: what takes no longer is made on the loop."""
    made = TokenSettings(threads=1, thread_hop_s=hop_s, stall_budget_s=hop_s)
    return TokenService(made, ModelTokenizers({"m": tokenizer}), 16)


async def told(own: TokenService, text: str, **fields: Any) -> Outcome:
    body = inspect(Kind.COMPLETION, json.dumps({"prompt": text, **fields}).encode())
    assert isinstance(body, CompletionBody)
    return await own.prompt("m", body)


def words(seed: int, chars: int) -> str:
    drawn = random.Random(seed)
    return "".join(drawn.choices([*PIECES, " the", " more", "\n    x = 1", *SPECIALS], k=chars))[
        :chars
    ]


@pytest.mark.parametrize("hop_s", [1e-9, 10.0], ids=["threads", "loop"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(240)
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=many(5))
@given(
    st.integers(0, 2**32),
    st.lists(
        st.tuples(st.integers(-40, 40), st.integers(0, 5), st.integers(0, 9_000), st.booleans()),
        min_size=2,
        max_size=4,
    ),
)
def test_the_ids_are_those_of_the_whole(
    name: str,
    hop_s: float,
    loaded: Callable[[str], Tokenizer],
    seed: int,
    later: list[tuple[int, int, int, bool]],
) -> None:
    """Texts that part near a place of the grid, where one may be cut."""
    tokenizer = loaded(name)
    base = words(seed, 5 * GRID_CHARS)

    async def compared() -> None:
        own = service(tokenizer, hop_s)
        for text in (base, base):
            await told(own, text)
        for shift, place, more, special in later:
            text = base[: max(0, place * GRID_CHARS + shift)] + words(seed + more, more)
            found = await told(own, text, add_special_tokens=special)
            assert found.prompt is not None, found.reason
            ids = found.prompt.ids
            assert ids == tokenizer.encoder.by_reference(text, add_special_tokens=special)
            blocks = (
                await told(service(tokenizer, hop_s), text, add_special_tokens=special)
            ).prompt
            assert blocks is not None
            assert found.prompt.blocks == blocks.blocks
        own.close()

    asyncio.run(compared())


@pytest.mark.parametrize("name", ["demo", "split", "metaspace", *SHARED_NAMES])
async def test_the_rest_of_a_long_text_is_encoded_alone(
    name: str, loaded: Callable[[str], Tokenizer]
) -> None:
    own = service(loaded(name), 1e-9)
    caches = own.models["m"].caches
    prose = " ".join(f"word{at}" for at in range(40_000))
    for more in range(4):
        await told(own, prose + f" and {more} more" * 30)
    assert caches.prefixes.hits == 3
    own.close()


async def test_what_short_texts_begin_with_is_encoded_once() -> None:
    own = service(demo_tokenizer(), 10.0)
    caches = own.models["m"].caches
    prose = " ".join(f"word{at}" for at in range(3_000))
    rungs = [(await told(own, prose + f" and {more} more")).rung for more in range(4)]
    assert rungs == [Rung.SHORT] * 4
    assert caches.openings.hits == 2
    own.close()

"""The tokens a replica reports as cached, and when two costs are the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.routing.cost import TIE_LIMIT_TOKENS, cached_limit_tokens, tie_tokens
from tokenlane.routing.decision import Query


@pytest.mark.parametrize(
    ("first_tokens", "limit"),
    [
        (100, 96),
        (96, 80),  # fully cached: the last token is computed, and with it its block
        (97, 96),
        (16, 0),
        (17, 16),
        (0, 0),
        (1, 0),
    ],
)
def test_as_many_tokens_as_vllm_can_report(first_tokens: int, limit: int) -> None:
    assert cached_limit_tokens(Query(b"", 16, first_tokens + 40, first_tokens)) == limit


@given(st.integers(0, 10**6), st.sampled_from([16, 32, 128]))
def test_a_tie_is_small_beside_the_prompt_or_at_most_a_block(tokens: int, block: int) -> None:
    tie = tie_tokens(Query(b"", block, tokens, tokens))
    assert tie <= TIE_LIMIT_TOKENS
    assert tie <= max(tokens / 16, block)
    assert tie >= min(block, TIE_LIMIT_TOKENS)

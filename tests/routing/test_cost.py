"""The tokens a replica reports as cached, and when two costs are the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.routing.cost import TIE_LIMIT_TOKENS, cached_tokens, tie_tokens
from proxy.routing.decision import Query


@pytest.mark.parametrize(
    ("matched_blocks", "first_tokens", "cached"),
    [
        (0, 100, 0),
        (3, 100, 48),
        (6, 100, 96),
        (6, 96, 80),  # fully cached: the last token is computed, and with it its block
        (6, 97, 96),
        (1, 16, 0),
        (1, 17, 16),
        (0, 0, 0),
        (0, 1, 0),
    ],
)
def test_cached_tokens_as_vllm_counts_them(
    matched_blocks: int, first_tokens: int, cached: int
) -> None:
    assert cached_tokens(matched_blocks, 16, first_tokens) == cached


@given(st.integers(0, 10**6), st.sampled_from([16, 32, 128]))
def test_a_tie_is_small_beside_the_prompt_or_at_most_a_block(tokens: int, block: int) -> None:
    tie = tie_tokens(Query(b"", block, tokens, tokens))
    assert tie <= TIE_LIMIT_TOKENS
    assert tie <= max(tokens / 16, block)
    assert tie >= min(block, TIE_LIMIT_TOKENS)

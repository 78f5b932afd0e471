"""Answers are real tokens, and a function of prompt and seed."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.errors import ConfigError
from tokenlane.simulator.text import TokenTable
from tokenlane.tokens.tokenizer import Tokenizer


class _Silent:
    """A tokenizer whose tokens have no text."""

    def encode(self, text: str, *, add_special_tokens: bool) -> bytes:
        return array("I", [1]).tobytes()

    def decode(self, ids: bytes) -> str:
        return ""


class _Syllables:
    """No word is one token; the pieces decode without their space."""

    def encode(self, text: str, *, add_special_tokens: bool) -> bytes:
        return array("I", [0, *text.strip().encode()]).tobytes()

    def decode(self, ids: bytes) -> str:
        return "".join(map(chr, array("I", ids)))


SYLLABLES = TokenTable(_Syllables())


@pytest.fixture(scope="module")
def table(demo_tokenizer: Tokenizer) -> TokenTable:
    return TokenTable(demo_tokenizer)


def test_answers_encode_to_their_ids(table: TokenTable, demo_tokenizer: Tokenizer) -> None:
    assert len(table.ids) >= 100
    answer = table.answer(12345, 0, 300)
    text = answer.text(300)
    assert demo_tokenizer.encode(text, add_special_tokens=False) == answer.packed(300)
    assert demo_tokenizer.decode(answer.packed(300)) == text
    assert text == "".join(answer.piece(position) for position in range(300))


@given(st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1))
def test_same_in_same_out(fingerprint: int, seed: int) -> None:
    table = SYLLABLES
    first, second = (table.answer(fingerprint, seed, 9) for _ in range(2))
    assert first.indexes == second.indexes
    assert len(first.ids(0, 9)) == 9


def test_any_tokenizer_gives_some_words() -> None:
    assert len(SYLLABLES.ids) > 5
    with pytest.raises(ConfigError):
        TokenTable(_Silent())

"""The least tokens of a text: never more than it has, and known only where that is certain."""

import json
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import many
from tests.support import demo_tokenizer
from tests.tokens.models import metaspace_spec, shared, split_spec
from tokenlane.tokens.encode.least_tokens import least_tokens, longest_token_chars
from tokenlane.tokens.tokenizer import Tokenizer

LONGEST = {"demo": 96, "qwen3": 128, "deepseek-v4": 128, "mistral-v0.3": 48}
# What is shortened by composition or drawn together by a token.
UNITS = [
    " ", "-", "=", ".", "\n", "a", "0", "\t", "▁", "*", "ΐ", "e\u0301", "\u1fbe\u0308\u0341", "K",
    "ᄀ\u1161\u11a8", "<|im_start|>", "</s>", "_", "สวัสดี", "中", "👩\u200d👧", "\x00", "\xa0",
]  # fmt: skip
RUNS = st.lists(
    st.tuples(st.sampled_from(UNITS) | st.text(min_size=1, max_size=3), st.integers(1, 300)),
    max_size=5,
).map(lambda runs: "".join(unit * count for unit, count in runs))


@cache
def loaded(name: str) -> Tokenizer:
    return demo_tokenizer() if name == "demo" else Tokenizer.load(name, shared(name))


@pytest.mark.parametrize("name", LONGEST)
def test_no_text_has_fewer(name: str) -> None:
    encoder = loaded(name).encoder
    assert longest_token_chars(json.loads(encoder.to_json())) == LONGEST[name]

    @settings(max_examples=many(50), deadline=None)
    @given(RUNS)
    def fewer(text: str) -> None:
        ids = encoder.by_reference(text, add_special_tokens=False)
        assert encoder.least_tokens(text) <= len(ids) // 4

    fewer()


def test_how_long_a_text_is_that_is_composed() -> None:
    """The 1.5 of the module: of all characters there are, by Python's Unicode."""
    composed = (chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    assert (
        max(
            len(unicodedata.normalize("NFKD", one)) / len(one.encode())
            for one in composed
            if unicodedata.is_normalized("NFKC", one)
        )
        == 1.5
    )


def test_ascii_counts_whole() -> None:
    assert least_tokens("a" * 1000, 100) == 10
    assert least_tokens("a" * 1001, 100) == 11
    assert least_tokens("é" * 1500, 100) == 10
    assert least_tokens("", 100) == 0


CHANGES: list[Callable[[dict[str, Any]], Any]] = [
    lambda spec: spec["added_tokens"].append({"content": "x", "lstrip": True, "rstrip": False}),
    lambda spec: spec["added_tokens"].append({"content": "x", "lstrip": False, "rstrip": True}),
    lambda spec: spec.update(normalizer={"type": "StripAccents"}),
    lambda spec: spec.update(
        normalizer={"type": "Replace", "pattern": {"String": "  "}, "content": " "}
    ),
    lambda spec: spec.update(
        normalizer={"type": "Replace", "pattern": {"Regex": " +"}, "content": "    "}
    ),
    lambda spec: spec.update(pre_tokenizer={"type": "Whitespace"}),
    lambda spec: spec.update(
        pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "Removed"}
    ),
    lambda spec: spec["model"].update(type="WordPiece"),
    lambda spec: spec["model"]["vocab"].pop(
        "<0x41>" if "<0x41>" in spec["model"]["vocab"] else "A"
    ),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", [split_spec, metaspace_spec])
def test_where_it_cannot_be_shown_nothing_is_known(
    change: Callable[[dict[str, Any]], Any], make: Callable[[], dict[str, Any]]
) -> None:
    spec = json.loads(json.dumps(make()))
    assert longest_token_chars(spec) is not None
    change(spec)
    assert longest_token_chars(spec) is None


def test_a_tokenizer_without_a_bound_refuses_nothing(tmp_path: Path) -> None:
    spec = {**split_spec(), "pre_tokenizer": {"type": "Whitespace"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    encoder = Tokenizer.load("m", tmp_path, fast=False).encoder
    assert encoder.least_tokens("a" * 100_000) == 0

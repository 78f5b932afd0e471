"""Encoding, and that cuts are exact."""

import json
from array import array
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from tests.examples import many
from tests.tokens.encode.pieces import ids_of, pieces_of
from tests.tokens.models import SHARED_NAMES, shared
from tokenlane.errors import RequestError
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.encode.encoder import Encoder
from tokenlane.tokens.ids import pack, unpack

NAMES = ("demo", *SHARED_NAMES)


def folder(name: str) -> Path:
    return demo_folder() if name == "demo" else shared(name)


@cache
def backend_text(name: str) -> str:
    return (folder(name) / "tokenizer.json").read_text(encoding="utf-8")


@cache
def encoder(name: str, *, affixes: bool = False) -> Encoder:
    backend = Backend.from_str(backend_text(name))
    if affixes:
        first = min(backend.get_added_tokens_decoder())
        token = backend.id_to_token(first)
        backend.post_processor = TemplateProcessing(
            single=f"{token} $A {token}", special_tokens=[(token, first)]
        )
    return Encoder(backend)


def texts(name: str) -> st.SearchStrategy[str]:
    """Texts that mix characters of all kinds with the tokenizer's added tokens and their parts."""
    added = [
        token.content
        for token in Backend.from_str(backend_text(name)).get_added_tokens_decoder().values()
    ][:60]
    halves = [token[: len(token) // 2] for token in added[:10]]
    words = [
        "\n",
        " ",
        "  ",
        "a",
        " the",
        "é",
        "e\u0301",
        "\u0301",
        "日本",
        "👩‍👩‍👧",
        "▁",
        "123",
        "don't",
    ]
    piece = st.sampled_from([*added, *halves, *words]) | st.text(max_size=6)
    return st.lists(piece, max_size=12).map("".join)


def test_packing_is_little_endian() -> None:
    assert pack([1, 0x01020304]) == b"\x01\0\0\0\x04\x03\x02\x01"
    assert unpack(pack([5, 6])).tolist() == [5, 6]
    with pytest.raises(OverflowError):
        pack([-1])


@pytest.mark.row("P5")
@pytest.mark.parametrize("name", NAMES)
def test_encoding_equals_the_library(name: str) -> None:
    backend = Backend.from_file(str(folder(name) / "tokenizer.json"))
    for text in ("", "a", " Hello,\n world! é 日本 123", "<|im_start|>user\nhi<|im_end|>[INST] x"):
        for special in (True, False):
            expected = backend.encode(text, add_special_tokens=special).ids
            assert (
                unpack(encoder(name).encode(text, add_special_tokens=special)).tolist() == expected
            )


@pytest.mark.parametrize("affixes", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_pieces_are_exact(name: str, affixes: bool) -> None:
    made = encoder(name, affixes=affixes)
    assert made.affixes is not None

    @settings(max_examples=many(30), deadline=None)
    @given(text=texts(name), special=st.booleans())
    def exact(text: str, special: bool) -> None:
        pieces = pieces_of(made, text)
        assert "".join(pieces) == text
        assert all(pieces) or pieces == [""]
        joined = ids_of(made, pieces, add_special_tokens=special)
        assert joined == made.encode(text, add_special_tokens=special)

    exact()


def test_cuts_stand_before_added_tokens() -> None:
    text = "x<|im_start|>user\nhi<|im_end|><|im_end|>\n"
    assert pieces_of(encoder("demo"), text) == [
        "x", "<|im_start|>user\nhi", "<|im_end|>", "<|im_end|>\n",
    ]  # fmt: skip
    assert pieces_of(encoder("demo"), "") == [""]
    assert pieces_of(encoder("demo"), "plain") == ["plain"]


def test_the_longest_of_overlapping_tokens_is_cut_whole() -> None:
    backend = Backend.from_str(backend_text("demo"))
    backend.add_tokens([AddedToken("<think>>", normalized=False)])
    made = Encoder(backend)
    text = "a<think>>b<think>c"
    assert pieces_of(made, text) == ["a", "<think>>b", "<think>c"]
    assert ids_of(made, pieces_of(made, text), add_special_tokens=False) == made.encode(
        text, add_special_tokens=False
    )


_RARELY = st.sampled_from([False] * 9 + [True])
ADDED = st.builds(
    partial(dict[str, Any]),
    content=st.text("<>ab ", min_size=1, max_size=4),
    normalized=st.booleans(),
    lstrip=_RARELY,
    rstrip=_RARELY,
    single_word=_RARELY,
)


def small(splits: str, normalizer: Any) -> str:
    """A tokenizer.json of few tokens that merge."""
    merges = [("a", "b"), ("▁", "a"), ("<", "a"), ("a", ">"), ("b", "<"), (" ", "a"), ("▁a", "b")]
    vocab = [*"<>ab▁ ", *(left + right for left, right in merges)]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": splits, "split": False}
    model = {"type": "BPE", "vocab": {one: at for at, one in enumerate(vocab)}, "merges": merges}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": normalizer,
            "pre_tokenizer": metaspace if splits else None,
            "model": model,
        }
    )


@pytest.mark.parametrize("splits", ["", "first", "always"])
@pytest.mark.parametrize(
    "normalizer",
    [
        None,
        {"type": "Sequence", "normalizers": []},
        {"type": "Replace", "pattern": {"String": "ab"}, "content": "<"},
    ],
)
def test_cuts_are_exact_at_any_added_tokens(splits: str, normalizer: Any) -> None:
    written = small(splits, normalizer)

    @settings(max_examples=many(50), deadline=None)
    @given(added=st.lists(ADDED, max_size=4), text=st.text("<>ab ", max_size=24))
    @example(
        [{"content": "<a", "normalized": True}, {"content": "ab", "normalized": False}], "b<ab"
    )
    @example([{"content": "<a", "normalized": True}, {"content": "<", "normalized": False}], "b<a")
    def exact(added: list[dict[str, Any]], text: str) -> None:
        backend = Backend.from_str(written)
        backend.add_tokens([AddedToken(one.pop("content"), **one) for one in map(dict, added)])
        made = Encoder(backend)
        joined = ids_of(made, pieces_of(made, text), add_special_tokens=False)
        assert joined == made.encode(text, add_special_tokens=False)

    exact()


def test_normalized_tokens_are_cuts_where_nothing_normalizes() -> None:
    spec = json.loads(backend_text("demo"))
    for normalizer, pieces in ((None, ["a", "<x>b"]), ({"type": "NFC"}, ["a<x>b"])):
        backend = Backend.from_str(json.dumps({**spec, "normalizer": normalizer}))
        backend.add_tokens([AddedToken("<x>", normalized=True)])
        assert pieces_of(Encoder(backend), "a<x>b") == pieces


@pytest.mark.parametrize("flag", ["lstrip", "single_word"])
def test_no_cuts_where_a_token_looks_to_its_left(flag: str) -> None:
    backend = Backend.from_str(backend_text("demo"))
    backend.add_tokens([AddedToken("<x>", normalized=False, **{flag: True})])
    made = Encoder(backend)
    assert pieces_of(made, "a <x><|im_end|>") == ["a <x><|im_end|>"]
    assert "cuts=none" in repr(made)


def test_no_cuts_where_special_tokens_are_split() -> None:
    backend = Backend.from_str(backend_text("demo"))
    backend.encode_special_tokens = True
    assert pieces_of(Encoder(backend), "a<|im_end|>") == ["a<|im_end|>"]


def test_a_token_may_strip_to_its_right() -> None:
    backend = Backend.from_str(backend_text("demo"))
    backend.add_tokens([AddedToken("<r>", normalized=False, rstrip=True)])
    made = Encoder(backend)
    for text in ("a<r>  b", "<r> \n<r>  <|im_end|>  x"):
        pieces = pieces_of(made, text)
        assert len(pieces) > 1
        assert ids_of(made, pieces, add_special_tokens=True) == made.encode(
            text, add_special_tokens=True
        )


def test_truncation_and_padding_of_the_file_are_cleared() -> None:
    backend = Backend.from_str(backend_text("demo"))
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    ids = Encoder(backend).encode("one two three four five six seven", add_special_tokens=True)
    assert len(ids) // 4 > 4
    assert array("I", ids)[-1] != 0


def test_text_that_is_no_unicode_is_refused_without_an_echo() -> None:
    with pytest.raises(RequestError) as refused:
        encoder("demo").encode("secret \ud800", add_special_tokens=False)
    assert refused.value.status == 400
    assert "secret" not in refused.value.message


def test_decoding_shows_special_tokens_and_drops_unknown_ids() -> None:
    made = encoder("demo")
    text = "<|im_start|>user\nhé<|im_end|>"
    ids = made.encode(text, add_special_tokens=False)
    assert made.decode(ids) == text
    assert made.decode(ids + pack([10_000_000])) == text
    assert made.token_strings(pack([10_000_000])) == [""]

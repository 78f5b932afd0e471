"""Tokenizers with "\u2581" have the library's ids from fastokens, however they say it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from tests.examples import many
from tests.tokens.encode.pieces import ids_of, pieces_of
from tests.tokens.models import metaspace_spec, shared, split_spec
from tokenlane.tokens.encode.encoder import Encoder
from tokenlane.tokens.encode.fastokens_encoder import FastEncoder
from tokenlane.tokens.encode.metaspace import before_inner_spaces, leads, spaced
from tokenlane.tokens.engines import Refused

Spec = dict[str, Any]


def scheme(name: str) -> Spec:
    spec = metaspace_spec()
    spec["pre_tokenizer"]["prepend_scheme"] = name
    return spec


def lines_spec() -> Spec:
    """As Gemma's: a normalizer, runs of line ends, tabs and marks as added tokens, and a token
    with a space behind something else."""
    spec = metaspace_spec()
    spec["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
    spec["pre_tokenizer"] = {**split, "invert": False}
    model, like = spec["model"], spec["added_tokens"][0]
    words = [">", "<", "/", "</", "\u2581</", ">\u2581</", "\u2581\u2581", "\u2581\u2581\u2581"]
    runs = [one * count for one in "\n\t" for count in (1, 2, 3)]
    for content in (*words, *runs, "<b>", "</b>"):
        model["vocab"][content] = len(model["vocab"])
    model["merges"] += [["<", "/"], ["\u2581", "</"], [">", "\u2581</"]]
    model["merges"] += [["\u2581", "\u2581"], ["\u2581\u2581", "\u2581"]]
    added = [*runs, "<b>", "</b>", "\u2581\u2581"]
    spec["added_tokens"] += [
        {**like, "id": model["vocab"][one], "content": one, "special": False} for one in added
    ]
    return spec


def mistral() -> Spec:
    return dict(json.loads((shared("mistral-v0.3") / "tokenizer.json").read_text("utf-8")))


MADE: dict[str, Callable[[], Spec]] = {
    "first": metaspace_spec,
    "always": lambda: scheme("always"),
    "never": lambda: scheme("never"),
    "lines": lines_spec,
    "mistral": mistral,
}
BITS = st.sampled_from(
    [
        "> </",
        "> ",
        "</s>",
        "<s>",
        "</s",
        "<b>",
        " ",
        "\n",
        "\n\n",
        "\t",
        "\u2581",
        "word",
        "ab",
        "#",
    ]
)
RUNS = st.builds(str.__mul__, st.sampled_from(" \n\t\u2581a#w日"), st.integers(0, 60))
TEXTS = st.lists(BITS | RUNS | st.text(max_size=8), max_size=12).map("".join)


def built(spec: Spec) -> Encoder:
    return Encoder(Backend.from_str(json.dumps(spec)))


@pytest.mark.parametrize("name", MADE)
def test_ids_are_the_librarys(name: str) -> None:
    encoder = built(MADE[name]())
    engine = FastEncoder(encoder.to_json())

    @settings(max_examples=many(70), deadline=None)
    @example(texts=["<0x00>"], special=False)
    @example(texts=["a", "b <0x0A>c"], special=True)
    @given(texts=st.lists(TEXTS, min_size=1, max_size=3), special=st.booleans())
    def alike(texts: list[str], special: bool) -> None:
        expected = [encoder.by_reference(text, add_special_tokens=special) for text in texts]
        made = engine.encode(texts, add_special_tokens=special)
        # The names of bytes are the library's to read.
        assert made == (None if any("<0x" in text for text in texts) else expected)

    alike()


@pytest.mark.parametrize("name", MADE)
def test_it_is_read_with_spaces_and_keeps_no_words(name: str) -> None:
    spec, told = json.loads(built(MADE[name]()).to_json()), list[int]()
    found = leads(spec)
    read = spaced(spec) if found is None else found.spec
    assert not any("\u2581" in word for word in read["model"]["vocab"])
    engine = FastEncoder(json.dumps(spec), told.append)
    engine.encode(["word " * 100], add_special_tokens=False)
    assert not engine.keeps_words
    assert told == []


def test_one_that_splits_keeps_words() -> None:
    told: list[int] = []
    engine = FastEncoder(built(split_spec()).to_json(), told.append)
    engine.encode(["word " * 100], add_special_tokens=False)
    assert engine.keeps_words
    assert told[-1] > 0


@pytest.mark.parametrize("name", MADE)
def test_cut_anywhere_it_is_the_same(name: str) -> None:
    encoder = built(MADE[name]())
    encoder.read_spec([])

    @settings(max_examples=many(70), deadline=None)
    @given(TEXTS)
    def alike(text: str) -> None:
        expected = encoder.by_reference(text, add_special_tokens=False)
        made = ids_of(encoder, pieces_of(encoder, text), add_special_tokens=False)
        assert made == expected

    alike()


def test_no_piece_of_its_own_for_every_line() -> None:
    encoder = built(lines_spec())
    assert encoder.starts("a\n\tb\n\nc<b>\t\t\n") == [4, 7]


def _set(*path: str | int, to: Any) -> Callable[[Spec], None]:
    def change(spec: Spec) -> None:
        at: Any = spec
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = to

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("pre_tokenizer", "split", to=True),
        _set("normalizer", to={"type": "NFC"}),
        _set("added_tokens", 1, "content", to=" s"),
        _set("added_tokens", 1, "rstrip", to=True),
        _set("added_tokens", 1, "normalized", to=True),
    ],
)
def test_where_it_is_not_known_to_be_the_same_the_library_stays(
    change: Callable[[Spec], None],
) -> None:
    spec = metaspace_spec()
    assert leads(json.loads(built(spec).to_json())) is not None
    change(spec)
    about = built(spec).to_json()
    assert leads(json.loads(about)) is None
    with pytest.raises(Refused):
        FastEncoder(about)


@pytest.mark.parametrize(
    "change",
    [
        _set("normalizer", to={"type": "NFC"}),
        _set("pre_tokenizer", "pattern", to={"String": "\n"}),
        _set("model", "vocab", "a b", to=5000),
        _set("added_tokens", 1, "content", to="a b"),
        _set("added_tokens", 1, "normalized", to=True),
    ],
)
def test_one_of_which_spaces_may_say_something_else_is_read_as_it_is(
    change: Callable[[Spec], None],
) -> None:
    spec = json.loads(built(lines_spec()).to_json())
    assert spaced(spec) is not spec
    change(spec)
    assert spaced(spec) is spec


def test_what_stands_before_a_space_inside_a_token() -> None:
    assert before_inner_spaces({"\u2581a": 0, "\u2581\u2581": 1, "a": 2}) == ""
    assert before_inner_spaces({">\u2581</": 0, "a\u2581\u2581b\u2581": 1}) == ">ab"
    assert before_inner_spaces({"<0x41>\u2581": 0}) is None

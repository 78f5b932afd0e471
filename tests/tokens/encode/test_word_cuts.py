"""Cuts beside words: exact, and only where that is known."""

import json
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import many
from tests.support import demo_tokenizer
from tests.tokens.encode.test_line_cuts import WORDS
from tests.tokens.encode.test_metaspace import lines_spec
from tests.tokens.models import (
    lines_folder,
    metaspace_spec,
    shared,
    split_spec,
    written,
)
from tokenlane.errors import Unrenderable
from tokenlane.tokens.encode.word_cuts import PART_CHARS, apart, places
from tokenlane.tokens.tokenizer import Tokenizer

NAMES = ("demo", "split", "metaspace", "lines", "qwen3", "mistral-v0.3", "deepseek-v4")
PIECES = [
    *WORDS,
    "a b",
    "c\nd",
    "e \n f",
    ") ",
    "\ng",
    " 1",
    "中 文",
    "สวัสดี ครับ",
    "\x1c",
    "\xa0",
    "> </",
    "▁",
    " ▁a",
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=20).map("".join)


def loader(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    """What loads a tokenizer by its name, once."""

    @cache
    def load(name: str) -> Tokenizer:
        if name == "demo":
            return demo_tokenizer()
        if name == "qwen3":
            return Tokenizer.load(name, shared(name))
        folder = tmp_path_factory.mktemp("words")
        if name == "lines":
            return Tokenizer.load(name, written(folder, lines_spec()))
        return Tokenizer.load(name, lines_folder(name, folder / name))

    return load


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    return loader(tmp_path_factory)


@pytest.mark.parametrize("name", NAMES)
def test_such_cuts_are_exact(name: str, loaded: Callable[[str], Tokenizer]) -> None:
    encoder = loaded(name).encoder
    found_by = places(json.loads(encoder.to_json()))
    assert found_by is not None

    @settings(max_examples=many(40), deadline=None)
    @given(TEXTS)
    def exact(text: str) -> None:
        begun = encoder.begun(text)
        cuts = [m.start() if m[0] == " " else m.end() for m in found_by.finditer(begun)]
        bounds = [0, *(at for at in cuts if at), len(begun)]
        parts = [begun[one:other] for one, other in pairwise(bounds)]
        joined = b"".join(map(encoder.encode_piece, parts))
        assert joined == encoder.by_reference(text, add_special_tokens=False)

    exact()


@pytest.mark.parametrize("name", ["demo", "metaspace", "qwen3", "mistral-v0.3"])
@pytest.mark.parametrize("special", [False, True])
def test_a_long_text_has_the_ids_of_the_whole(
    name: str, special: bool, loaded: Callable[[str], Tokenizer]
) -> None:
    encoder = loaded(name).encoder
    text = "Some words (and\nlines) สวัสดี 42. " * 6000
    assert len(list(encoder.apart(text))) == 4
    made = encoder.encode_apart(text, add_special_tokens=special)
    assert made == encoder.by_reference(text, add_special_tokens=special)


def test_parts_are_about_so_long_and_make_the_text() -> None:
    [found_by] = {places(split_spec()), places(json.loads(demo_tokenizer().encoder.to_json()))}
    text = ("x" * 1000 + "\n") * 500
    parts = list(apart(text, found_by))
    assert "".join(parts) == text
    assert all(PART_CHARS <= len(part) <= PART_CHARS + 1001 for part in parts[:-1])
    assert list(apart("", found_by)) == [""]


@pytest.mark.parametrize("mark", [" ", "a", "\n", "a  ", "é"])
def test_what_cannot_be_cut_is_refused_where_it_is_long(mark: str) -> None:
    found_by = places(split_spec())
    words = "word " * 20_000
    for text in (mark * 300_000, words + mark * 300_000, mark * 300_000 + words):
        with pytest.raises(Unrenderable, match="uncut"):
            list(apart(text, found_by))
    assert "".join(apart(words + mark * 20_000 + words, found_by)) == words + mark * 20_000 + words


def test_without_cuts_a_text_is_one_part_up_to_a_limit() -> None:
    assert list(apart("a b " * 100_000, None)) == ["a b " * 100_000]
    with pytest.raises(Unrenderable, match="uncut"):
        list(apart("a b " * 600_000, None))


def token(content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    return {"id": 9, "content": content, **flags}


def test_where_nothing_is_known_there_are_none() -> None:
    for spec in (split_spec(), metaspace_spec()):
        assert places(spec) is not None
        assert places({**spec, "added_tokens": [token("a b")]}) is None
        assert places({**spec, "added_tokens": [{**token("a"), "lstrip": True}]}) is None
        assert places({**spec, "normalizer": {"type": "Lowercase"}}) is None
    metaspace = metaspace_spec()
    vocab = {**metaspace["model"]["vocab"], "a▁": 99_999}
    found_by = places({**metaspace, "model": {**metaspace["model"], "vocab": vocab}})
    assert found_by is not None
    assert [place.start() for place in found_by.finditer("a b c▁ d")] == [3]
    spec = json.loads(demo_tokenizer().encoder.to_json())
    assert (
        places({**spec, "pre_tokenizer": {**spec["pre_tokenizer"], "add_prefix_space": True}})
        is None
    )

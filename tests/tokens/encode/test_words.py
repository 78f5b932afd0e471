"""Words that are remembered give the library's ids, whatever stands in the text."""

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from tests.tokens.models import metaspace_spec, shared, split_spec
from tokenlane.tokens.encode import words
from tokenlane.tokens.encode.encoder import Encoder
from tokenlane.tokens.encode.words import WordEncoder
from tokenlane.tokens.engines import Refused
from tokenlane.tokens.folder import read
from tokenlane.tokens.ids import unpack

NAMES = ("metaspace", "mistral-v0.3")


def built(spec: dict[str, Any]) -> Encoder:
    return Encoder(Backend.from_str(json.dumps(spec)))


@cache
def reference(name: str) -> Encoder:
    return built(metaspace_spec()) if name == "metaspace" else Encoder(read(shared(name)).backend)


@cache
def remembering(name: str) -> WordEncoder:
    return WordEncoder(reference(name))


def same(engine: WordEncoder, encoder: Encoder, text: str, *, special: bool = False) -> bool:
    expected = encoder.by_reference(text, add_special_tokens=special)
    return engine.encode([text], add_special_tokens=special) == [expected]


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_the_whole_text(name: str) -> None:
    encoder = reference(name)
    engine = WordEncoder(encoder)
    marks = st.sampled_from(
        [*encoder.added[:20], "</s", "<0x0A>", "\0", "\u2581", "\ud7ff", "e\u0301"]
    )
    runs = st.builds(str.__mul__, st.sampled_from(" \n\t\u2581a#w日"), st.integers(0, 60))
    some = st.text(alphabet="ab #:word\n\u2581", max_size=30) | st.text(max_size=12)
    texts = st.lists(marks | runs | some, max_size=10).map("".join)

    @settings(max_examples=400, deadline=None)
    @given(text=texts, special=st.booleans())
    def alike(text: str, special: bool) -> None:
        assert same(engine, encoder, text, special=special)
        # Now from memory.
        assert same(engine, encoder, text, special=special)

    alike()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "word " * 20_000,
        "word  a\n" * 9_000,
        "a" * 40_000,
        "wordab" * 9_000,
        "日本語é" * 9_000,
        "e\u0301\u0302" * 9_000,
        "\u2581" * 20_000 + "a" * 20_000 + " " * 20_000,
        "ab:" * 4_000 + "</s>" + "b:" * 5_000,
        "ab</s>" * 5_000,
        "#" * 30_001,
        "a:" + "#" * 29_999 + "::",
        "x" + "#" * 20_002 + "b" * 20_003 + "###",
        "0" * 9_000 + "b" * 33_333 + "ab",
    ],
    ids=lambda text: text[:6],
)
def test_long_texts_and_long_words(name: str, text: str) -> None:
    encoder = reference(name)
    assert same(WordEncoder(encoder), encoder, text)


class Watched:
    """An encoder that notes how much text each call of the library takes."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.affixes, self.to_json = encoder.affixes, encoder.to_json
        self.longest_chars = self.calls = 0

    def by_reference(self, text: str, *, add_special_tokens: bool) -> bytes:
        self.longest_chars = max(self.longest_chars, len(text))
        self.calls += 1
        return self._encoder.by_reference(text, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("name", NAMES)
def test_no_call_takes_much_where_it_can_be_cut(name: str) -> None:
    watched = Watched(reference(name))
    engine = WordEncoder(cast(Encoder, watched))
    watched.calls = 0
    letters = random.Random(1).choices("abcdefghijklmnopqrstuvwxyz#:日é", k=100_000)
    engine.encode(["".join(letters), " ".join(letters)], add_special_tokens=False)
    assert watched.calls > 10
    longest_chars = words._CALL_CHARS + words._LOOK_CHARS + words._LIMIT_WORD_CHARS
    assert watched.longest_chars <= longest_chars


@pytest.mark.parametrize(
    ("merges", "longest"),
    [
        ([], 0),
        (["a a"], 2),
        (["a a", "aa aa", ["aaaa", "aaaa"], "b a"], 8),
        # Not by doubling, or not short ones first: how they merge depends on all of them.
        (["a a", "aa a"], 0),
        (["a a", "a aa", "aa aa"], 0),
        (["aa aa", "a a"], 0),
        (["a a", "aa aa", "aa aa"], 0),
    ],
)
def test_runs_that_merge_by_doubling(merges: list[str], longest: int) -> None:
    assert words._blocks(merges).get("a", 0) == longest


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from("#aq0"),
    st.integers(words._CALL_CHARS, 3 * words._CALL_CHARS),
    st.text(alphabet="ab #:qé0\n", max_size=6),
    st.text(alphabet="ab #:qé0\n", max_size=6),
)
@pytest.mark.parametrize("name", NAMES)
def test_runs_of_one_character(name: str, one: str, count: int, before: str, after: str) -> None:
    engine = remembering(name)
    assert same(engine, reference(name), before + one * count + after)


def test_what_is_remembered_is_bounded() -> None:
    encoder = reference("metaspace")
    engine = WordEncoder(encoder)
    engine.limit_bytes = 20_000
    for start in range(0, 600, 60):
        text = " ".join(f"w{number}" for number in range(start, start + 60))
        assert same(engine, encoder, text)
        assert 0 < engine.size_bytes <= 20_000
    assert same(engine, encoder, "x" * (words._LIMIT_WORD_CHARS + 1))
    assert max(map(len, engine._known)) <= words._LIMIT_WORD_CHARS


def test_ids_that_look_like_a_line_end_beside_each_other() -> None:
    spec = metaspace_spec()
    # "\n" is 0D 00 00 00; these two have the same bytes, one further.
    spec["model"]["vocab"] |= {"s": 0x0D01, "u": 0x0400}
    encoder = built(spec)
    line_end = encoder.encode("\n", add_special_tokens=False)[-4:]
    assert list(unpack(line_end)) == [0x0D]
    assert line_end in encoder.encode("su", add_special_tokens=False)
    assert same(WordEncoder(encoder), encoder, "a su b su\nsu")


def test_a_tokenizer_without_added_tokens() -> None:
    spec = metaspace_spec()
    spec["added_tokens"] = []
    encoder = built(spec)
    for text in ("", "a", " a", "ab: word\n\nb", "b:" * 9_000):
        assert same(WordEncoder(encoder), encoder, text)


def _set(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(spec: dict[str, Any]) -> None:
        at: Any = spec
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = to

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("model", "byte_fallback", to=False),
        _set("model", "ignore_merges", to=True),
        _set("model", "dropout", to=0.5),
        _set("model", "vocab", "a▁b", to=5000),
        _set("added_tokens", 1, "content", to="<s >"),
        _set("added_tokens", 1, "lstrip", to=True),
        _set("pre_tokenizer", "prepend_scheme", to="always"),
        _set("pre_tokenizer", "split", to=True),
        _set("normalizer", to={"type": "NFC"}),
        lambda spec: spec["model"]["vocab"].pop("<0x41>"),
        lambda spec: (
            spec["model"]["vocab"].update({"<0x41>a": 5000})
            or spec["model"]["merges"].append(["<0x41>", "a"])
        ),
    ],
)
def test_only_tokenizers_whose_words_are_independent(
    change: Callable[[dict[str, Any]], None],
) -> None:
    spec = metaspace_spec()
    WordEncoder(built(spec))
    change(spec)
    with pytest.raises(Refused):
        WordEncoder(built(spec))


def test_others_have_none() -> None:
    with pytest.raises(Refused):
        WordEncoder(built(split_spec()))
    encoder = reference("metaspace")
    added = Backend.from_str(encoder.to_json())
    added.add_tokens([AddedToken("in between", normalized=False)])
    with pytest.raises(Refused):
        WordEncoder(Encoder(added))

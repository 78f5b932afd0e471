"""Cuts before lines that begin with a template's mark: exact, and only where that is known."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import many
from tests.tokens.encode.pieces import ids_of, pieces_of
from tests.tokens.models import PLAIN_MARK, lines_folder, metaspace_spec, split_spec
from tokenlane.tokens.encode.line_cuts import Parts, marks, parts
from tokenlane.tokens.tokenizer import Tokenizer

NAMES = ("split", "metaspace", "tabs", "mistral-v0.3", "deepseek-v4")
# Whitespace of all kinds, and what could hold on to a line's end or to a mark.
WORDS = [
    "\n", "\n\n", "\r\n", "\r", " ", "  ", "\t", "\x0b", "\x85", "\u2028", "▁", "### ", "#", "word",
    "ab", "Foo", "123", "4", "中", "é", "e\u0301", "\u0301", "\u0338", "!", "?!", "'s", "/", "_",
    "\x00", "👩\u200d👩\u200d👧", "<s>", "</s>", "[INST]", "<|im_start|>", "<｜User｜>",
]  # fmt: skip
TEXTS = st.lists(
    st.sampled_from([*WORDS, "\n" + PLAIN_MARK, "\n###"]) | st.text(max_size=4), max_size=20
).map("".join)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    @cache
    def load(name: str) -> Tokenizer:
        folder = lines_folder(name, tmp_path_factory.mktemp("lines") / name)
        return Tokenizer.load(name, folder)

    return load


@pytest.mark.parametrize("name", NAMES)
def test_such_cuts_are_exact(name: str, loaded: Callable[[str], Tokenizer]) -> None:
    encoder = loaded(name).encoder
    assert len(pieces_of(encoder, "### user:\na\n### assistant:\nb\n### user:\nc")) == 3

    @settings(max_examples=many(30), deadline=None)
    @given(TEXTS, st.booleans())
    def exact(text: str, special: bool) -> None:
        pieces = pieces_of(encoder, text)
        joined = ids_of(encoder, pieces, add_special_tokens=special)
        assert joined == encoder.encode(text, add_special_tokens=special)

    exact()


def test_a_text_begins_as_the_tokenizer_begins_it(loaded: Callable[[str], Tokenizer]) -> None:
    encoder = loaded("metaspace").encoder
    begun = ("### a", " ### a", "▁### a", "<s>### a", "\n### a", "")
    assert [encoder.begun(text) for text in begun] == [
        " ### a", " ### a", "▁### a", "<s>### a", " \n### a", "",
    ]  # fmt: skip
    assert encoder.begun("\tab") == " \tab"
    encoder = loaded("tabs").encoder
    for text in ("\tab word", "    ab word", "ab\tab", "\t### user:\nab"):
        made = ids_of(encoder, pieces_of(encoder, text), add_special_tokens=False)
        assert made == encoder.by_reference(text, add_special_tokens=False)
    assert loaded("split").encoder.begun("### a") == "### a"


def test_tokens_are_better_cuts() -> None:
    literals = ["<|im_start|>", "<|im_start|>assistant\n"]
    assert marks(literals, ["</s>"]) == ["<|im_start|>"]
    assert marks(literals, ["</s>", "<|im_start|>"]) == []


def test_marks_begin_a_line_and_are_more_than_a_word() -> None:
    literals = ["### ", "### user:\n", " indented: no\n", "a:\nUSER: \n\n#Instruction here"]
    literals += ["assistant", "tool_calls", "\u0338mark:", "", "\n"]
    assert marks(literals, []) == ["### ", "#Instruction here", "USER: "]
    assert len(marks([f"<{number:03}>" for number in range(100)], [])) == 32


def changed(spec: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """path: keys and numbers between dots."""
    *way, last = (int(key) if key.isdigit() else key for key in path.split("."))
    at: Any = spec
    for key in way:
        at = at[key]
    at[last] = value
    return spec


DIGITS = {
    "type": "Split",
    "pattern": {"Regex": r"\p{N}{1,3}"},
    "behavior": "Isolated",
    "invert": False,
}
SPLITS: list[tuple[str, Any]] = [
    ("model.type", "Unigram"),
    ("model.dropout", 0.1),
    ("model.continuing_subword_prefix", "##"),
    ("model.end_of_word_suffix", "</w>"),
    ("normalizer", {"type": "Lowercase"}),
    ("pre_tokenizer", None),
    ("pre_tokenizer.pretokenizers.0.pattern", {"Regex": r"\s+"}),
    ("pre_tokenizer.pretokenizers.0.pattern", {"String": " "}),
    ("pre_tokenizer.pretokenizers.0.behavior", "Removed"),
    ("pre_tokenizer.pretokenizers.0.invert", True),
    # It knows of no line's end, so what follows it must.
    ("pre_tokenizer.pretokenizers.0", DIGITS),
    ("pre_tokenizer.pretokenizers.1.use_regex", True),
    ("pre_tokenizer.pretokenizers.1.add_prefix_space", True),
    ("added_tokens.0.lstrip", True),
    ("added_tokens.0.rstrip", True),
    ("added_tokens.0.single_word", True),
    ("added_tokens.0.content", "<a\nb>"),
]
METASPACES: list[tuple[str, Any]] = [
    ("pre_tokenizer.split", True),
    ("pre_tokenizer.prepend_scheme", "always"),
    ("normalizer", {"type": "NFC"}),
    ("added_tokens.0.normalized", True),
    ("model.byte_fallback", False),
    ("model.merges", [["\n", "#"]]),
    ("model.merges", ["<0x0A> <0x0A>"]),
]


@pytest.mark.parametrize(("path", "value"), SPLITS)
def test_what_is_not_known_to_split_there_is_not_cut(path: str, value: Any) -> None:
    assert parts(split_spec()) is Parts.AT_SPLITS
    assert parts(changed(split_spec(), path, value)) is Parts.NOT


@pytest.mark.parametrize(("path", "value"), METASPACES)
def test_what_is_not_known_to_begin_words_there_is_not_cut(path: str, value: Any) -> None:
    assert parts(metaspace_spec()) is Parts.AFTER_LEAD
    assert parts(changed(metaspace_spec(), path, value)) is Parts.NOT


def test_digits_may_be_split_first() -> None:
    spec = split_spec()
    spec["pre_tokenizer"]["pretokenizers"].insert(0, DIGITS)
    assert parts(spec) is Parts.AT_SPLITS


def test_an_unknown_pattern_leaves_the_text_whole(tmp_path: Path) -> None:
    folder = lines_folder("split", tmp_path / "model")
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(text.replace(r"\\s*[\\r\\n]+", r"\\s*[\\n]+"), "utf-8")
    encoder = Tokenizer.load("m", folder).encoder
    assert pieces_of(encoder, "### user:\na\n### user:\nb") == ["### user:\na\n### user:\nb"]

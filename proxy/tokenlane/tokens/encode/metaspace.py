"""Tokenizers that split nothing and make a space part of the word behind it, "\u2581the".

Some say so by a pre-tokenizer, Metaspace (Mistral's, Llama 2's), others by a normalizer (Gemma's).
The two differ in what Metaspace puts in front of a text ("first") or of each stretch between added
tokens ("always"), so the former is read as the latter where the caller puts a space there: before
the model sees anything, both then have the same text in the same stretches. Added tokens are found
before either looks at a text, and what is put there is part of none.
"""

import re
from itertools import pairwise
from typing import Any, Final

from tokenlane.tokens.encode.literals import longest_of

_MARK: Final = "\u2581"
_SPACES: Final = (" ", _MARK)
_FLAGS: Final = ("normalized", "lstrip", "rstrip", "single_word")
_REPLACE: Final = {"type": "Replace", "pattern": {"String": " "}, "content": _MARK}
_NOTHING: Final = "(?!)"


class Leads:
    """The space in front of a text: what Metaspace does and a normalizer does not. spec: as it is
    read with a normalizer."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._scheme = spec["pre_tokenizer"]["prepend_scheme"]
        self.spec = {**spec, "normalizer": _REPLACE, "pre_tokenizer": None}
        added = sorted({token["content"] for token in spec["added_tokens"]} - {""})
        self._added = re.compile(f"(?:{longest_of(added) or _NOTHING})+")

    def put(self, text: str) -> str:
        """Return the text with what is put in front."""
        if self._scheme == "never" or not text:
            return text
        if self._scheme == "always":
            text = self._added.sub(_behind, text)
        bare = text.startswith(_SPACES) or self._added.match(text) is not None
        return text if bare else " " + text


def leads(spec: dict[str, Any]) -> Leads | None:
    """Return the leads of a tokenizer.json with such a pre-tokenizer; None: it has none, or it is
    not known to be the same with a normalizer."""
    step = spec["pre_tokenizer"]
    if (
        step is None
        or step["type"] != "Metaspace"
        or step["split"]
        or step["replacement"] != _MARK
        or spec["normalizer"] is not None
        or not _are_plain(spec)
    ):
        return None
    return Leads(spec)


def replaces_spaces(spec: dict[str, Any]) -> bool:
    """Return whether a normalizer does it, and each line's end that stands alone is an added
    token."""
    step = spec["pre_tokenizer"]
    lines = {token["content"] for token in spec["added_tokens"] if "\n" in token["content"]}
    return (
        spec["normalizer"] == _REPLACE
        # Of spaces, of which the normalizer leaves none.
        and (step is None or (step["type"] == "Split" and step["pattern"] == {"String": " "}))
        and _are_plain(spec)
        and "\n" in lines
        and not any(line.strip("\n") for line in lines)
    )


def before_inner_spaces(vocab: dict[str, int]) -> str | None:
    """Return the characters behind which a token has a space; None: not known."""
    inner = [token for token in vocab if _MARK in token.lstrip(_MARK)]
    if any("<0x" in token for token in inner):
        return None
    pairs = {pair for token in inner for pair in pairwise(token)}
    return "".join(sorted({one for one, other in pairs if other == _MARK != one}))


def _are_plain(spec: dict[str, Any]) -> bool:
    """Return whether added tokens are found in a text as it is, and nothing put in front is part of
    them."""
    return not any(
        " " in token["content"] or any(token[flag] for flag in _FLAGS)
        for token in spec["added_tokens"]
    )


def _behind(match: re.Match[str]) -> str:
    end = match.end()
    bare = end == len(match.string) or match.string.startswith(_SPACES, end)
    return match[0] if bare else match[0] + " "

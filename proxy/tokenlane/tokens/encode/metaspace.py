"""Tokenizers that split nothing and make a space part of the word behind it, "\u2581the".

Some say so by a pre-tokenizer, Metaspace (Mistral's, Llama 2's), others by a normalizer (Gemma's).
The two differ in what Metaspace puts in front of a text ("first") or of each stretch between added
tokens ("always"), so the former is read as the latter where the caller puts a space there: before
the model sees anything, both then have the same text in the same stretches. Added tokens are found
before either looks at a text, and what is put there is part of none.

Either is read with the two exchanged: spaces stay, and what is spelled "\u2581" becomes a space
(`spaced`). The model's text holds one of the two alone, so the merges are the same; and what
fastokens takes for that is half. With "\u2581" words of five letters collide in its table, too:
4 KB of those take 14 ms.
"""

import re
from itertools import pairwise
from typing import Any, Final

from tokenlane.tokens.encode.literals import longest_of

_MARK: Final = "\u2581"
_SPACES: Final = (" ", _MARK)
_FLAGS: Final = ("normalized", "lstrip", "rstrip", "single_word")
_SPACE: Final = {"String": " "}
_REPLACE: Final = {"type": "Replace", "pattern": _SPACE, "content": _MARK}
_NOTHING: Final = "(?!)"


class Leads:
    """The space in front of a text: what Metaspace does and a normalizer does not. spec: as it is
    read with a normalizer."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._scheme = spec["pre_tokenizer"]["prepend_scheme"]
        self.spec = spaced({**spec, "normalizer": _REPLACE, "pre_tokenizer": None})
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


def spaced(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer.json that gives the same ids and leaves spaces as they are, of one with
    such a normalizer; of any other, itself."""
    model, vocab = spec["model"], spec["model"].get("vocab")
    if (
        spec["normalizer"] != _REPLACE
        or splits(spec)
        or model["type"] != "BPE"
        or _MARK not in vocab
        or any(" " in token for token in vocab)
        or any(token["normalized"] or " " in token["content"] for token in spec["added_tokens"])
    ):
        return spec
    merges = (one.split(" ") if isinstance(one, str) else one for one in model["merges"])
    model = {
        **model,
        "vocab": {token.replace(_MARK, " "): number for token, number in vocab.items()},
        "merges": [[part.replace(_MARK, " ") for part in merge] for merge in merges],
    }
    back = {"type": "Replace", "pattern": {"String": _MARK}, "content": " "}
    return {**spec, "model": model, "normalizer": back, "pre_tokenizer": None}


def splits(spec: dict[str, Any]) -> bool:
    """Return whether a tokenizer splits a text into words before it merges."""
    step = spec["pre_tokenizer"]
    if step is None or step["type"] == "Metaspace":
        return step is not None and bool(step["split"])
    # At spaces, of which its normalizer leaves none.
    none_left: bool = spec["normalizer"] == _REPLACE
    return not none_left or step["type"] != "Split" or step["pattern"] != _SPACE


def replaces_spaces(spec: dict[str, Any]) -> bool:
    """Return whether a normalizer does it, and each line's end that stands alone is an added
    token."""
    step = spec["pre_tokenizer"]
    lines = {token["content"] for token in spec["added_tokens"] if "\n" in token["content"]}
    return (
        spec["normalizer"] == _REPLACE
        and (step is None or step["type"] == "Split")
        and not splits(spec)
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

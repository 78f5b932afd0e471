"""Where a long text may be cut besides: before a lone space and behind a lone line's end, with no
whitespace on either side. So a long encode goes by parts, and what cannot be cut is not begun.

Why such a cut is exact. No added token reaches over it (none holds a space or a line's end, or
takes in what stands around it), and
- where a regular expression splits the text (those of `tokenlane.tokens.encode.line_cuts`, and
  GPT-2's): in none does a match go on from something that is no whitespace to a space, nor from a
  line's end to something that is none. So one match ends there and the next begins there. Nothing
  in them looks back, and what looks ahead, `\\s+(?!\\S)`, finds something else than whitespace on
  both sides, or takes a lone line's end as `\\s+` would;
- where nothing splits it and spaces become part of words (`tokenlane.tokens.encode.metaspace`): no
  token has a space behind what stands before this one, and a line's end merges with nothing, or is
  an added token.
Nothing composes with a space or a line's end (NFC). What Python takes for no whitespace is none to
these tokenizers either.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from tokenlane.errors import Unrenderable
from tokenlane.tokens.encode.line_cuts import QWEN, Parts, is_plain, parts, steps
from tokenlane.tokens.encode.metaspace import before_inner_spaces, replaces_spaces

# Encoded in one call: 0.2 ms, or 30 ms where it is one word; another job has its turn between two.
PART_CHARS: Final = 64 * 1024
# Encoded on the loop at most, however fast other texts were: 25 ms where it is one word, or where
# the fast engine leaves it to the usual one. More may be where the loop may stall for longer.
LOOP_CHARS: Final = 32 * 1024
WORD_S_PER_CHAR: Final = 0.8e-6
# Encoded though it cannot be cut: as one word it takes 50 ms and 6 MB. Where no cut is known to be
# exact, most of such texts are many words: 1.3 s and 40 MB, were it one.
_LIMIT_CHARS: Final = 128 * 1024
_UNKNOWN_LIMIT_CHARS: Final = 2 * 1024 * 1024

# Between two places of a text that others may begin with.
GRID_CHARS: Final = 4 * 1024

_BESIDE_WORDS = re.compile(r"(?<=\S)[ \n](?=\S)")
_BEHIND_LINE_ENDS = r"(?<=\S)\n(?=\S)"
_QWEN_SPLIT = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": QWEN}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
    ],
}


def places(spec: dict[str, Any]) -> re.Pattern[str] | None:
    """Return what finds such places, of a tokenizer.json: a space to cut before, a line's end to
    cut behind. None: no cut is known to be exact."""
    if any(" " in token["content"] for token in spec["added_tokens"]):
        return None
    splits = steps(spec["pre_tokenizer"], "pretokenizers")
    if len(splits) == 1 and splits[0]["type"] == "ByteLevel" and splits[0]["use_regex"]:
        # GPT-2's: Qwen's in its place would be cut alike.
        spec = {**spec, "pre_tokenizer": None if splits[0]["add_prefix_space"] else _QWEN_SPLIT}
    way = parts(spec)
    if way is Parts.AT_SPLITS:
        return _BESIDE_WORDS
    replaced = is_plain(spec["model"]) and replaces_spaces(spec)
    known = replaced or way is Parts.AFTER_LEAD
    inner = before_inner_spaces(spec["model"]["vocab"]) if known else None
    if inner is None:
        return None
    before_spaces = rf"(?<=[^\s\u2581{re.escape(inner)}]) (?=\S)"
    # Behind a line's end Metaspace would put a space: that is no place for every caller.
    return re.compile(f"{before_spaces}|{_BEHIND_LINE_ENDS}" if replaced else before_spaces)


def apart(text: str, found_by: re.Pattern[str] | None) -> Iterator[str]:
    """Cut `text` into parts that are encoded independently. found_by: see `places`; without it, the
    text is one part. Raise Unrenderable where too much of it cannot be cut."""
    limit_chars = _UNKNOWN_LIMIT_CHARS if found_by is None else _LIMIT_CHARS
    start, near = 0, PART_CHARS
    while found_by is not None and near < len(text):
        place = found_by.search(text, near, start + limit_chars)
        if place is None:
            break
        at = _cut_at(place)
        yield text[start:at]
        start, near = at, at + PART_CHARS
    if len(text) - start > limit_chars:
        raise Unrenderable("uncut")
    yield text[start:] if start else text


def on_grid(text: str, from_at: int, until: int, found_by: re.Pattern[str]) -> list[int]:
    """Return places of `text` to cut, about one in GRID_CHARS, from_at <= place < until. Texts that
    begin alike have the same ones, wherever the search began. found_by: see `places`."""
    found = []
    for near in range(from_at // GRID_CHARS * GRID_CHARS, until, GRID_CHARS):
        place = found_by.search(text, near, near + GRID_CHARS)
        if place is not None and from_at <= (at := _cut_at(place)) < until:
            found.append(at)
    return found


def is_place(text: str, at: int, found_by: re.Pattern[str]) -> bool:
    """Return whether `text` may be cut here. found_by: see `places`."""
    before, behind = found_by.match(text, at - 1), found_by.match(text, at)
    return any(place is not None and _cut_at(place) == at for place in (before, behind))


def _cut_at(place: re.Match[str]) -> int:
    return place.start() if place[0] == " " else place.end()

"""Where a text may also be cut: before a line that begins with a mark of the chat template.

For models whose templates mark their messages with plain text, as where a tokenizer is used with
the template of another family: no added token stands there, and without a cut every turn of a
conversation would be encoded again from its first word.

Why such a cut is exact. A line begins with a mark where "\\n" stands before it, and the mark with
ASCII that is no whitespace. No added token reaches over the two (none holds a line's end or takes
in what stands around it), and
- where a regular expression splits the text (those below, then bytes): nothing in it matches a
  line's end and then something that is no whitespace, so one match ends there and the next
  begins there. Nothing in it looks back, and its only look ahead, `\\s+(?!\\S)`, is not tried on
  whitespace that holds a line's end, which `\\s*[\\r\\n]+` takes first. So neither side knows of
  the other, and no merge reaches over what is split;
- where nothing splits it and spaces become part of words (Metaspace): the line's end is a token by
  itself that merges with nothing, so what stands on both sides merges by itself.
Anything else has no such cuts.
"""

from collections.abc import Iterable
from enum import Enum, auto
from typing import Any

# The expressions of Qwen, Llama 3 (the number of digits in a group changes nothing) and DeepSeek.
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_AT_LINES = frozenset((QWEN, QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|"), _DEEPSEEK))
# Expressions that may split a text before one of those: none matches a line's end.
_WITHIN = frozenset((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"))

# The least a mark is long, in characters, and the most there are.
_LEAST_CHARS = 4
_LIMIT_MARKS = 32


class Parts(Enum):
    """Ways in which a tokenizer parts at such lines. AT_SPLITS: each side as if it were alone.
    AFTER_LEAD: but for the space that it puts in front of a text."""

    NOT = auto()
    AT_SPLITS = auto()
    AFTER_LEAD = auto()


def parts(spec: dict[str, Any]) -> Parts:
    """Return how a tokenizer parts at such lines. spec: its tokenizer.json."""
    model = spec["model"]
    if not is_plain(model):
        return Parts.NOT
    for token in spec["added_tokens"]:
        if token["lstrip"] or token["rstrip"] or token["single_word"] or "\n" in token["content"]:
            return Parts.NOT
    normalizers = steps(spec["normalizer"], "normalizers")
    splits = steps(spec["pre_tokenizer"], "pretokenizers")
    composed = all(one["type"] == "NFC" for one in normalizers)
    if composed and splits and _is_bytes(splits[-1]) and _split_at_lines(splits[:-1]):
        return Parts.AT_SPLITS
    # Where a text begins with such a token, it is not found by where it stands in the text.
    plain = not normalizers and not any(token["normalized"] for token in spec["added_tokens"])
    if plain and len(splits) == 1 and _is_lead(splits[0]) and _ends_alone(model):
        return Parts.AFTER_LEAD
    return Parts.NOT


def is_plain(model: dict[str, Any]) -> bool:
    """Return whether its merges alone decide."""
    others = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    return model.get("type") == "BPE" and not any(model.get(name) for name in others)


def marks(literals: Iterable[str], added: Iterable[str]) -> list[str]:
    """Return what lines of a conversation begin with, of all text that a template holds; nothing
    where an added token stands in it, which is a better cut."""
    texts = list(literals)
    if any(token in text for token in added for text in texts):
        return []
    lines = {line for text in texts for line in text.split("\n") if _is_mark(line)}
    found: list[str] = []
    for line in sorted(lines, key=len):
        if not line.startswith(tuple(found)):
            found.append(line)
    return sorted(found[:_LIMIT_MARKS])


def _is_mark(line: str) -> bool:
    """Return whether it is more than a word, such as the name of a role, that a text may hold
    often."""
    begins = line[:1].isascii() and bool(line[:1].strip())
    return begins and len(line) >= _LEAST_CHARS and not line.replace("_", "").isalnum()


def steps(step: dict[str, Any] | None, several: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    return list(step[several]) if step["type"] == "Sequence" else [step]


def _split_at_lines(splits: list[dict[str, Any]]) -> bool:
    """Return whether the last of these splits at lines, and no other knows of them."""
    patterns = [
        # Some files have a line's end as it is, others escape it.
        step["pattern"].get("Regex", "").replace("\r", r"\r").replace("\n", r"\n")
        for step in splits
        if step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]
    ]
    return (
        len(patterns) == len(splits) > 0
        and patterns[-1] in _AT_LINES
        and _WITHIN.issuperset(patterns[:-1])
    )


def _is_bytes(step: dict[str, Any]) -> bool:
    return step["type"] == "ByteLevel" and not step["add_prefix_space"] and not step["use_regex"]


def _is_lead(step: dict[str, Any]) -> bool:
    return step["type"] == "Metaspace" and step["prepend_scheme"] == "first" and not step["split"]


def _ends_alone(model: dict[str, Any]) -> bool:
    """Return whether a line's end is a token, and part of no other."""
    known = "\n" in model["vocab"] or (model.get("byte_fallback") and "<0x0A>" in model["vocab"])
    merges = (one.split(" ") if isinstance(one, str) else one for one in model["merges"])
    return bool(known) and not any(
        "\n" in part or part == "<0x0A>" for merge in merges for part in merge
    )

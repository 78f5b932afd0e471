"""The least tokens that a text of so many characters has, told without encoding it.

Each character is part of a token, and a token stands for no more characters than the longest entry
of the vocabulary has bytes. Composition (NFC, NFKC) makes of a text of N characters one of N / 1.5
bytes or more: what a character comes from has no more characters than its full decomposition, and
that has at most three for two bytes (as U+0390). What is ASCII has nothing to compose.

Unknown where anything may vanish or be drawn together without a bound: normalizers and splits other
than those below, added tokens that take in the spaces around them, vocabularies without every byte.
"""

from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from tokenlane.tokens.encode.line_cuts import steps

# None makes a text shorter than said above. (`Replace` is looked at.)
_NORMALIZERS = frozenset(("NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace"))
# None drops anything. (`Split` and `Punctuation` only where told to.)
_SPLITS = frozenset(("Split", "ByteLevel", "Metaspace", "Digits", "Punctuation"))
_DROPS = "Removed"


def longest_token_chars(spec: dict[str, Any]) -> int | None:
    """Return the most characters that a token of this tokenizer.json stands for; None: unknown."""
    model, added = spec["model"], spec["added_tokens"]
    if (
        model.get("type") != "BPE"
        or any(token["lstrip"] or token["rstrip"] for token in added)
        or not all(map(_keeps_length, steps(spec["normalizer"], "normalizers")))
    ):
        return None
    splits = steps(spec["pre_tokenizer"], "pretokenizers")
    if any(step["type"] not in _SPLITS or step.get("behavior") == _DROPS for step in splits):
        return None
    vocab = model["vocab"]
    texts = [token["content"] for token in added]
    if any(step["type"] == "ByteLevel" for step in splits):
        every_byte, longest_bytes = set(ByteLevel.alphabet()), max(map(len, vocab))
    elif model.get("byte_fallback"):
        every_byte, longest_bytes = {f"<0x{number:02X}>" for number in range(256)}, 0
        texts += vocab
    else:
        return None
    if not every_byte <= vocab.keys():
        return None
    return max(longest_bytes, *(len(text.encode()) for text in texts), 1)


def least_tokens(text: str, longest_chars: int) -> int:
    """As many at least, of a text in which no token stands for more characters than that."""
    if text.isascii():
        return -(-len(text) // longest_chars)
    return -(-2 * len(text) // (3 * longest_chars))


def _keeps_length(step: dict[str, Any]) -> bool:
    if step["type"] != "Replace":
        return step["type"] in _NORMALIZERS
    pattern = step["pattern"].get("String")
    return pattern is not None and len(step["content"]) >= len(pattern)

"""Texts to ids by words that are remembered, where the library's model takes a text as one word.

For BPE tokenizers that split nothing and make a space part of what follows it (Metaspace, as
Mistral's and Llama's): the library merges each text from its characters on, and cannot remember
words as it does where a text is split before. A word seen before costs a lookup here, about 0.1 us,
a tenth of that; words not seen before go to the library, many in a call.

Why the ids are the same. A merge makes a token of the vocabulary from neighbours. So what stands
side by side in no token is never merged across, and a text may be cut there:
- before a space, for no token has one (as "▁") behind something else;
- on both sides of a line's end, which is in no longer token (`tokenlane.tokens.encode.line_cuts`);
- between any two characters that are neighbours in no token. Characters that are no token become
  bytes, which merge with nothing;
- in a long run of one character, where its merges are all of two equal runs, short ones first: the
  run then merges from its left end into runs of the longest, whatever follows changes no more than
  a token's length of it, and it may be cut at any multiple of that from where it begins, if it
  begins where a text may be cut.
No added token has a space or a line's end in it, so none reaches over the first two.

Invariants:
- No call holds the GIL for more than some thousand characters, except over what cannot be cut.
- What is remembered is bounded in bytes; full, it begins anew.
"""

import json
import re
from collections.abc import Iterable, Iterator
from sys import getsizeof
from typing import Any, cast

from tokenlane.tokens.encode.encoder import Encoder
from tokenlane.tokens.encode.line_cuts import Parts, parts
from tokenlane.tokens.encode.literals import longest_of
from tokenlane.tokens.engines import Refused

# Spaces and a word, spaces alone, a line's end: joined, they are the text.
_WORD = re.compile("[ \u2581]*[^ \u2581\n]+|[ \u2581]+|\n")
_BEGINS = re.compile("(?<=[^ \u2581])[ \u2581]|\n")
_NOTHING = "(?!)"
_LINE_END = "\n"
_MARK = "\0"
_BEFORE_SPACE, _AROUND_LINE_END = _MARK + " ", _MARK + _LINE_END + _MARK
# Searched for words in one go, and given to the library in one call.
_WINDOW_CHARS = 16 * 1024
_CALL_CHARS = 8 * 1024
# How far a place to cut a long word is looked for.
_LOOK_CHARS = 512
_LIMIT_BYTES = 8 * 1024 * 1024
_LIMIT_WORD_CHARS = 32
# What one word costs beside its text and ids: the ids' header, hash and place in the dictionary.
_ENTRY_BYTES = 90


class WordEncoder:
    """Texts to packed ids. Safe to share between threads."""

    def __init__(self, encoder: Encoder) -> None:
        """Raises Refused."""
        spec, affixes = json.loads(encoder.to_json()), encoder.affixes
        if affixes is None or parts(spec) is not Parts.AFTER_LEAD or not _are_alone(spec):
            raise Refused("its words are not known to be independent")
        self._encoder = encoder
        self._affixes = affixes
        added = sorted({token["content"] for token in spec["added_tokens"]} - {""})
        self._added = re.compile(longest_of(added) or _NOTHING)
        self._reach = max(map(len, added), default=0)
        vocab = spec["model"]["vocab"]
        self._longest = max(map(len, vocab))
        self._blocks = _blocks(spec["model"]["merges"])
        self._pairs = {token[at : at + 2] for token in vocab for at in range(len(token) - 1)}
        self._lead = self._reference(_LINE_END)
        self._line_end = self._lead[-4:]
        self.limit_bytes = _LIMIT_BYTES
        self._forget()

    def encode(self, texts: list[str], *, add_special_tokens: bool) -> list[bytes]:
        """Packed ids of each text. Raises RequestError(400) for text that is not Unicode."""
        before, after = self._affixes if add_special_tokens else (b"", b"")
        return [b"".join((before, *self._ids(text), after)) for text in texts]

    def _ids(self, text: str) -> list[bytes]:
        """The ids of each word, all that the library puts in front of a text included."""
        if text and text[0] not in " \u2581" and self._added.match(text) is None:
            text = " " + text
        found: list[bytes] = []
        at = 0
        while at < len(text):
            end = _boundary(text, at + _WINDOW_CHARS)
            found += self._each(_words(text[at:end]))
            at = end
        return found

    def _each(self, words: list[str]) -> list[bytes]:
        found = list(map(self._known.get, words))
        missing = [at for at, ids in enumerate(found) if ids is None]
        if missing:
            fresh = self._made({words[at] for at in missing})
            for at in missing:
                found[at] = fresh[words[at]]
        return cast(list[bytes], found)

    def _made(self, words: Iterable[str]) -> dict[str, bytes]:
        made: dict[str, bytes] = {}
        batch: list[str] = []
        chars = 0
        for word in words:
            if len(word) > _CALL_CHARS:
                made[word] = b"".join(self._several([piece])[0] for piece in self._cut(word))
                continue
            batch.append(word)
            chars += len(word)
            if chars > _CALL_CHARS:
                made.update(zip(batch, self._several(batch), strict=True))
                batch, chars = [], 0
        if batch:
            made.update(zip(batch, self._several(batch), strict=True))
        short = {word: ids for word, ids in made.items() if len(word) <= _LIMIT_WORD_CHARS}
        size_bytes = sum([getsizeof(word) + len(short[word]) + _ENTRY_BYTES for word in short])
        if self.size_bytes + size_bytes > self.limit_bytes:
            self._forget()
        if size_bytes <= self.limit_bytes:
            self._known.update(short)
            self.size_bytes += size_bytes
        return made

    def _several(self, words: list[str]) -> list[bytes]:
        """Each word's ids, by one call: a line's end before each shows where its ids begin."""
        ids = self._reference(_LINE_END + _LINE_END.join(words))[len(self._lead) :]
        found = ids.split(self._line_end)
        if len(found) == len(words) and not any(len(own) % 4 for own in found):
            return found
        # Bytes of two ids beside each other looked like a line's end.
        return [self._reference(_LINE_END + word)[len(self._lead) :] for word in words]

    def _cut(self, word: str) -> Iterator[str]:
        """Parts of a long word that merge by themselves."""
        start = 0
        for near in range(_CALL_CHARS, len(word), _CALL_CHARS):
            until = min(near + _LOOK_CHARS, len(word))
            at = next((at for at in range(near, until) if self._is_cut(word, at)), None)
            if at is None:
                at = self._in_run(word, start, near)
            if at is not None:
                yield word[start:at]
                start = at
        yield word[start:]

    def _is_cut(self, word: str, at: int) -> bool:
        if word[at - 1 : at + 1].replace(" ", "\u2581") in self._pairs:
            return False
        return not self._is_added(word, at, at)

    def _in_run(self, word: str, start: int, near: int) -> int | None:
        """A place before `near` to cut a run of one character; start: the last cut."""
        one = word[near]
        block = self._blocks.get(one, 0)
        if not block or word[near : near + self._longest] != one * self._longest:
            return None
        began = start + len(word[start:near].rstrip(one))
        if began > start and not self._is_cut(word, began):
            return None
        at = near - (near - began) % block
        return None if at <= start or self._is_added(word, began, near + self._longest) else at

    def _is_added(self, word: str, start: int, end: int) -> bool:
        """Whether an added token reaches into these characters."""
        near = max(0, start - self._reach)
        return self._added.search(word, near, end + self._reach) is not None

    def _forget(self) -> None:
        self._known: dict[str, bytes] = {"": b"", _LINE_END: self._line_end}
        self.size_bytes = 0

    def _reference(self, text: str) -> bytes:
        return self._encoder.by_reference(text, add_special_tokens=False)


def _words(text: str) -> list[str]:
    """The text's words, and empty ones between."""
    if "  " in text or "\u2581" in text or _MARK in text:
        return _WORD.findall(text)
    # The same where spaces stand alone, in a third of the time.
    return text.replace(" ", _BEFORE_SPACE).replace(_LINE_END, _AROUND_LINE_END).split(_MARK)


def _boundary(text: str, at: int) -> int:
    """The next place from `at` on where a word begins, or the end."""
    while at < len(text):
        found = _BEGINS.search(text, at, at + _WINDOW_CHARS)
        if found is not None:
            return found.start()
        at += _WINDOW_CHARS
    return len(text)


def _blocks(merges: list[Any]) -> dict[str, int]:
    """How long the longest run of a character is that is a token, for characters whose runs merge
    by doubling alone."""
    found: dict[str, int] = {}
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if set(left) != set(right) or len(set(left)) > 1:
            continue
        longest = found.get(left[0], 1)
        doubles = len(left) == len(right) == longest
        found[left[0]] = 2 * longest if doubles else 0
    return found


def _are_alone(spec: dict[str, Any]) -> bool:
    """Whether no token reaches over a space, and what is no token always becomes bytes."""
    model = spec["model"]
    vocab = model["vocab"]
    as_bytes = {f"<0x{number:02X}>" for number in range(256)}
    merges = (one.split(" ") if isinstance(one, str) else one for one in model["merges"])
    return (
        bool(model.get("byte_fallback"))
        and not model.get("ignore_merges")
        and as_bytes <= vocab.keys()
        and all("\u2581" not in token.lstrip("\u2581") for token in vocab)
        and as_bytes.isdisjoint(part for merge in merges for part in merge)
        and not any({" ", "\u2581"} & set(token["content"]) for token in spec["added_tokens"])
    )

"""Text to ids and back, with exact cuts, on one shared `tokenizers.Tokenizer`.

Invariants:
- The backend is only read after construction: its truncation and padding setters take a write
  borrow, and a concurrent encode would fail with "Already borrowed". They are cleared once, here.
- `encode_batch_fast` releases the GIL for its whole work, `encode` does not: only the former is
  used. Ids leave as packed little-endian uint32.
- A faster engine (`use`) gives the same ids, or gives up.
- A cut is exact because an added token that is not normalized is found in the raw text before
  normalization and pre-tokenization, which then see each stretch between such tokens alone. One
  that is normalized is found as well where there is no normalizer, after the others. The
  cut stands BEFORE the token and the token stays with the text after it: Metaspace asks whether a
  stretch is the first of its text, and bare text between tokens would wrongly say yes.
- Where such a token looks at its left neighbour (`lstrip`, `single_word`), there are no cuts.
- Lines that begin with certain marks are cuts too, where tokenlane.tokens.encode.line_cuts says so
  (`read_spec`).
- A long text is encoded by parts, and one that cannot be cut is refused (`apart`,
  tokenlane.tokens.encode.word_cuts).
- Where no token begins inside another, every place a search finds is a cut, wherever the search
  began (`cuts_anywhere`); else only a search from a cut on finds cuts.
"""

import re
import sys
from collections.abc import Iterator
from typing import Final, Protocol

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from tokenlane.errors import RequestError
from tokenlane.tokens.encode import least_tokens, word_cuts
from tokenlane.tokens.encode.line_cuts import Parts, parts
from tokenlane.tokens.encode.literals import longest_of
from tokenlane.tokens.encode.word_cuts import PART_CHARS
from tokenlane.tokens.ids import pack, unpack

# Words that show what the post-processor puts around a text; both sides must agree on them.
PROBES: Final = ("a", "the quick brown fox", "0 1")
# Encoded in front of a piece and removed again: it merges with nothing.
_LEAD: Final = "\n"
# Characters searched in one call: a search holds the GIL, and a megabyte without a token takes
# several ms.
_WINDOW_CHARS: Final = 64 * 1024


class EncodeEngine(Protocol):
    """A faster way to ids. keeps_words: a thread that encodes remembers words of what it read."""

    keeps_words: bool

    def encode(self, texts: list[str], *, add_special_tokens: bool) -> list[bytes] | None:
        """Return packed ids of each text; None where it gives up. Raise UnicodeEncodeError, or the
        RequestError of `Encoder.encode`."""


class Encoder:
    """One tokenizer. Safe to share between threads.

    affixes: packed ids put before and after a text by `add_special_tokens`; None where the
    post-processor does more than that. cuts_anywhere: `starts` may begin its search anywhere.
    """

    def __init__(self, backend: Backend) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        contents = _cut_contents(backend)
        self._cut = re.compile(longest_of(contents)) if contents else None
        self._longest = max(map(len, contents), default=0)
        self.cuts_anywhere = not _nested(contents)
        # Ids of the text that a piece is encoded behind; None where it is encoded alone.
        self._lead: bytes | None = None
        self._begins: re.Pattern[str] | None = None
        self._fast: EncodeEngine | None = None
        self.affixes = self._find_affixes()
        self._places: re.Pattern[str] | None = None
        self._longest_token_chars: int | None = None

    def __repr__(self) -> str:
        cuts = "exact" if self._cut else "none"
        around = None if self.affixes is None else [len(part) // 4 for part in self.affixes]
        return f"<Encoder vocab={self._backend.get_vocab_size()} cuts={cuts} specials={around}>"

    @property
    def splits_specials(self) -> bool:
        """Special tokens in a text are read as text. `to_json` does not say so."""
        return bool(self._backend.encode_special_tokens)

    def encode(self, text: str, *, add_special_tokens: bool) -> bytes:
        """Return packed ids of a whole text. Raise RequestError(400) for text that is not Unicode
        (a lone surrogate)."""
        found = self._fast_ids([text], add_special_tokens)
        if found is not None:
            return found[0]
        return self.by_reference(text, add_special_tokens=add_special_tokens)

    def encode_apart(self, text: str, *, add_special_tokens: bool) -> bytes:
        """As `encode`, of a text of any length. Raise Unrenderable where it cannot be cut."""
        affixes = self.affixes if add_special_tokens else (b"", b"")
        if len(text) <= PART_CHARS or affixes is None:
            [whole] = word_cuts.apart(text, None)
            return self.encode(whole, add_special_tokens=add_special_tokens)
        parts = map(self.encode_piece, self.apart(self.begun(text)))
        return b"".join((affixes[0], *parts, affixes[1]))

    def apart(self, piece: str) -> Iterator[str]:
        """Return a piece in parts for `encode_piece`, each of about PART_CHARS. Raise Unrenderable
        where too much of it cannot be cut."""
        return word_cuts.apart(piece, self._places)

    def least_tokens(self, text: str) -> int:
        """Return how many tokens the text has at least, at no cost; 0 where nothing is known."""
        longest = self._longest_token_chars
        return 0 if longest is None else least_tokens.least_tokens(text, longest)

    def by_reference(self, text: str, *, add_special_tokens: bool) -> bytes:
        """Return the ids that `tokenizers` itself makes."""
        try:
            encodings = self._backend.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
        except (UnicodeEncodeError, TypeError):
            raise _not_unicode() from None
        return pack(encodings[0].ids)

    def use(self, fast: EncodeEngine) -> None:
        """Encode with `fast` from now on. At load only, before the encoder is shared."""
        self._fast = fast

    def read_spec(self, marks: list[str]) -> None:
        """Learn from the tokenizer's description where long texts may be cut, and how long a
        token is; cuts before lines that begin with one of these marks, too, where that is exact. At
        load only, before the encoder is shared."""
        spec = msgspec.json.decode(self.to_json())
        if self.affixes is not None:
            self._longest_token_chars = least_tokens.longest_token_chars(spec)
        if self._backend.encode_special_tokens:
            return
        self._places = word_cuts.places(spec)
        way = parts(spec) if marks else Parts.NOT
        if way is Parts.NOT:
            return
        ways = [] if self._cut is None else [self._cut.pattern]
        # Every cut begins with one of these characters, so the search skips all others.
        ways += [f"{re.escape(one[0])}(?<=\n.){re.escape(one[1:])}" for one in marks]
        self._cut = re.compile("|".join(ways))
        self._longest = max(self._longest, *map(len, marks))
        if way is Parts.AFTER_LEAD:
            self._lead = self.encode(_LEAD, add_special_tokens=False)
            contents = sorted(set(self.added) - {""})
            self._begins = re.compile(longest_of(contents)) if contents else None

    def begun(self, piece: str) -> str:
        """Return the first piece of a text, as it is encoded: with what is put in front of a text,
        where a piece that stands behind another would get that too if it were encoded alone."""
        if self._lead is None or not piece or piece[0] in " \u2581":
            return piece
        # An added token, which may be none of the cuts (`_frequent`).
        added = self._begins is not None and self._begins.match(piece) is not None
        return piece if added else " " + piece

    @property
    def keeps_words(self) -> bool:
        """Whether a thread that encodes remembers words, which speeds up the next."""
        return self._fast is not None and self._fast.keeps_words

    @property
    def added(self) -> list[str]:
        """The added tokens, special ones and others."""
        return [token.content for token in self._backend.get_added_tokens_decoder().values()]

    @property
    def vocabulary_size(self) -> int:
        """One more than the last id."""
        added = self._backend.get_added_tokens_decoder()
        return max(self._backend.get_vocab_size(), max(added, default=-1) + 1)

    @property
    def cuts(self) -> bool:
        """Whether any cut is known to be exact."""
        return self._cut is not None

    @property
    def cuts_words(self) -> bool:
        """Whether a text can be cut between its words, wherever a search for that began."""
        return self._places is not None and self.cuts_anywhere

    def starts(
        self, text: str, from_at: int = 0, until: int = sys.maxsize, *, words: bool = False
    ) -> list[int]:
        """Return where `text` may be cut, from_at <= place < until, ascending: what stands before
        such a place is encoded independently of the rest. `from_at` must be 0 or such a place,
        unless `cuts_anywhere`. [] where no cut is known to be exact. words: also between two words
        in about every 4 KiB; needs `cuts_words`."""
        if words:
            assert self._places is not None
            besides = word_cuts.on_grid(text, from_at, min(until, len(text)), self._places)
            return sorted({*self.starts(text, from_at, until), *besides})
        if self._cut is None:
            return []
        found: list[int] = []
        at, until = from_at, min(until, len(text))
        while at < until:
            # A token that begins in this window is seen whole.
            window = min(at + _WINDOW_CHARS, until)
            for match in self._cut.finditer(text, at, min(window + self._longest - 1, len(text))):
                if match.start() >= window:
                    break
                found.append(match.start())
                at = match.end()
            at = max(at, window)
        return found

    def is_cut(self, text: str, at: int, *, words: bool = False) -> bool:
        """Return whether `text` may be cut here: `starts` could find it. Needs `cuts_anywhere`."""
        if self._cut is not None and self._cut.match(text, at) is not None:
            return True
        return words and self._places is not None and word_cuts.is_place(text, at, self._places)

    def encode_piece(self, piece: str) -> bytes:
        """Return packed ids of one piece, without special tokens around it."""
        if self._lead is None:
            return self.encode(piece, add_special_tokens=False)
        return self.encode(_LEAD + piece, add_special_tokens=False)[len(self._lead) :]

    def encode_each(self, pieces: list[str]) -> list[bytes]:
        """Return packed ids of each piece, on this thread alone: one call of the library with all
        of them would spread over the cores."""
        found = self._fast_ids(pieces, False) if self._lead is None else None
        return [self.encode_piece(piece) for piece in pieces] if found is None else found

    def decode(self, ids: bytes) -> str:
        """Return text of packed ids, special tokens included; ids outside the vocabulary vanish."""
        return self._backend.decode(unpack(ids).tolist(), skip_special_tokens=False)

    def token_strings(self, ids: bytes) -> list[str]:
        """Return each id's entry in the vocabulary, as it is spelled there; "" for unknown ids."""
        return [self._backend.id_to_token(one) or "" for one in unpack(ids)]

    def to_json(self) -> str:
        """Return the tokenizer as `tokenizers` serializes it; other engines are built from this."""
        return self._backend.to_str()

    def _fast_ids(self, texts: list[str], special: bool) -> list[bytes] | None:
        if self._fast is None:
            return None
        try:
            return self._fast.encode(texts, add_special_tokens=special)
        except UnicodeEncodeError:
            raise _not_unicode() from None

    def _find_affixes(self) -> tuple[bytes, bytes] | None:
        found: set[tuple[bytes, bytes]] = set()
        for probe in PROBES:
            bare = self.encode(probe, add_special_tokens=False)
            full = self.encode(probe, add_special_tokens=True)
            if full == bare:
                found.add((b"", b""))
                continue
            at = full.find(bare)
            while at % 4 and at >= 0:
                at = full.find(bare, at + 1)
            if at < 0 or not bare:
                return None
            found.add((full[:at], full[at + len(bare) :]))
        return found.pop() if len(found) == 1 else None


def _cut_contents(backend: Backend) -> list[str]:
    """Return the added tokens that split raw text; [] where a cut would not be exact."""
    if backend.encode_special_tokens:
        return []
    tokens = list(backend.get_added_tokens_decoder().values())
    raw = [token for token in tokens if not token.normalized]
    if _look_left(raw):
        return []
    if not (_normalizes(backend) or _look_left(tokens) or _overlap(tokens)):
        raw = tokens
    return sorted({token.content for token in raw} - {""} - _frequent(raw))


def _frequent(tokens: list[AddedToken]) -> set[str]:
    """Return tokens that occur too often for the text between them to be worth a piece of its own:
    a line's end, tabs (an empty line is worth one). None where a token that stays might begin
    inside one of these, which was found first."""
    contents = {token.content for token in tokens}
    found = {one for one in contents if one.isspace() and not one.startswith("\n\n")}
    begins = {one[:1] for one in contents - found}
    return set() if any(begins & set(one[1:]) for one in found) else found


def _look_left(tokens: list[AddedToken]) -> bool:
    return any(token.lstrip or token.single_word for token in tokens)


def _normalizes(backend: Backend) -> bool:
    normalizer = backend.normalizer
    if normalizer is None:
        return False
    state = msgspec.json.decode(normalizer.__getstate__())
    return bool(state["type"] != "Sequence" or state["normalizers"])


def _overlap(tokens: list[AddedToken]) -> bool:
    """Return whether one that is not normalized, and so found first, could take part of one that
    is."""
    first = tuple(token.content for token in tokens if not token.normalized)
    return _nested([token.content for token in tokens]) or any(
        token.normalized and token.content.startswith(first) for token in tokens
    )


def _nested(contents: list[str]) -> bool:
    """Return whether one might begin inside another."""
    begins = {content[:1] for content in contents}
    return any(begins & set(content[1:]) for content in contents)


def _not_unicode() -> RequestError:
    return RequestError(400, "The prompt is not valid Unicode text.", code="invalid_unicode")

"""Answers: real tokens, cheap, the same for the same prompt and seed.

Invariants:
- Every token of the table stands for its text alone, so joined pieces are the decoded answer.
- An answer is arithmetic over the table: no randomness, no model, no tokenizer at run time.
"""

from array import array
from typing import Protocol

import msgspec
import xxhash

from tokenlane.errors import ConfigError

WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from "
    "or had an they which one you were all her she there would their we him been has when who "
    "will no more if out so up said what its about than into them can only other time new some "
    "could these two may first then do any like my now over such our man me even most made after "
    "also did many off before must well back through years much where your way down should "
    "because long each just state those people too good world still between life being day make "
    "work year used while how file line text name list value type data call set get read write "
    "return error string number object class method function default module path code size test "
    "key index start end open close next last same under never another know put take use house "
    "system place against point right small great again part great every since found high here "
    "result given order output input level local process server client request message header "
    "body table field block cache count limit batch queue token prompt model layer stream"
).split()
_LEAST = 32


class _Tokenizer(Protocol):
    def encode(self, text: str, *, add_special_tokens: bool) -> bytes: ...
    def decode(self, ids: bytes) -> str: ...


class AnswerText:
    """Positions in the table, one per token."""

    __slots__ = ("_table", "_text", "_text_tokens", "indexes")

    def __init__(self, table: "TokenTable", indexes: list[int]) -> None:
        self._table = table
        self._text = ""
        self._text_tokens = 0
        self.indexes = indexes

    def text(self, tokens: int) -> str:
        """Return the first `tokens` tokens decoded."""
        if tokens != self._text_tokens:
            texts = self._table.texts
            self._text = "".join([texts[index] for index in self.indexes[:tokens]])
            self._text_tokens = tokens
        return self._text

    def piece(self, position: int) -> str:
        """Return one token decoded."""
        return self._table.texts[self.indexes[position]]

    def ids(self, start: int, end: int) -> list[int]:
        """Return the token ids of a part of the answer."""
        ids = self._table.ids
        return [ids[index] for index in self.indexes[start:end]]

    def packed(self, tokens: int) -> bytes:
        """Return the first `tokens` ids as packed uint32."""
        return array("I", self.ids(0, tokens)).tobytes()


class TokenTable:
    """Words that are one token each. quoted: their JSON strings."""

    def __init__(self, tokenizer: _Tokenizer) -> None:
        self.ids: list[int] = []
        self.texts: list[str] = []
        for exact in (True, False):
            for word in WORDS:
                self._add(tokenizer, word, exact=exact)
            if len(self.ids) >= _LEAST:
                break
        if not self.ids:
            raise ConfigError("simulator: the tokenizer gives no usable tokens for plain English")
        self.quoted = [msgspec.json.encode(text) for text in self.texts]

    def _add(self, tokenizer: _Tokenizer, word: str, *, exact: bool) -> None:
        ids = array("I", tokenizer.encode(" " + word, add_special_tokens=False))
        if exact and len(ids) != 1:
            return
        token = ids[-1]
        text = tokenizer.decode(ids[-1:].tobytes())
        if not text or "\ufffd" in text or token in self.ids:
            return
        # Metaspace tokenizers strip the space that starts a text.
        self.ids.append(token)
        self.texts.append(" " + text if text == word else text)

    def answer(self, fingerprint: int, seed: int, tokens: int) -> AnswerText:
        """Return the answer to a prompt with this fingerprint."""
        mixed = xxhash.xxh3_64_intdigest(fingerprint.to_bytes(8, "little"), seed % 2**63)
        size = len(self.ids)
        start, stride = mixed % size, (mixed >> 32) % (size - 1) + 1 if size > 1 else 0
        return AnswerText(self, [(start + step * stride) % size for step in range(tokens)])

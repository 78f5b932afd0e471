"""fastokens as an encoder. It does not do Metaspace: such tokenizers it reads as those with a
normalizer (`tokenlane.tokens.encode.metaspace`).

Invariants:
- One encode runs on the calling thread alone, without the GIL.
"""

import os
import struct
from itertools import pairwise
from typing import Protocol

import msgspec

from tokenlane.tokens.encode.metaspace import leads
from tokenlane.tokens.engines import Refused, tried


class Flat(Protocol):
    """fastokens' tokenizer, as far as it is used."""

    def encode_batch_flat(
        self, inputs: list[str], add_special_tokens: bool = False
    ) -> tuple[bytes, bytes]: ...


class FastEncoder:
    """Texts to packed ids. Safe to share between threads."""

    def __init__(self, tokenizer_json: str) -> None:
        """Raises Refused."""
        # Read when the engine first runs; without it one call spreads over all cores.
        os.environ["FASTOKENS_BPE_THREADS"] = "1"
        try:
            from fastokens import Tokenizer  # noqa: PLC0415 - after the variable
        except ImportError as error:
            raise Refused(str(error)) from None
        self._leads = leads(msgspec.json.decode(tokenizer_json))
        if self._leads is not None:
            tokenizer_json = msgspec.json.encode(self._leads.spec).decode()
        self._engine: Flat = tried(Tokenizer.from_json_str, tokenizer_json)
        # The first call builds tables; no request should pay for it.
        self.encode(["warm up"], add_special_tokens=True)

    def encode(self, texts: list[str], *, add_special_tokens: bool) -> list[bytes] | None:
        """Packed ids of each text; None where the engine fails. Raises UnicodeEncodeError."""
        if self._leads is not None:
            texts = [self._leads.put(text) for text in texts]
        try:
            ids, bounds = tried(self._engine.encode_batch_flat, texts, add_special_tokens)
        except Refused:
            return None
        if len(texts) == 1:
            return [ids]
        ends = struct.unpack(f"<{len(bounds) // 8}Q", bounds)
        return [ids[start * 4 : end * 4] for start, end in pairwise(ends)]

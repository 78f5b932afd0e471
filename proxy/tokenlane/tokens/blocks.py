"""Block hashes: what a prompt's prefix is called, in the replica's own granularity.

Invariants:
- A hash names a whole prefix, not a block: each is chained on the one before, so two prompts
  share hash i exactly when they share everything up to block i (64-bit collisions aside).
- The chain starts from a root that depends on the domain (ids or text), the block size and the
  salt, so token hashes, text hashes, tenants and models never meet by construction.
- Only full blocks have a hash; a replica never caches a partial one.
- Input and output are packed bytes: no list of the whole prompt's ids is ever made.
"""

import sys
from array import array
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

from tokenlane.prompt import HASH_BYTES
from tokenlane.tokens import xxh3

# A block of text stands for as many tokens as a block of ids, at this usual ratio. It keeps
# capacities and costs of both kinds in one unit; nothing exact is derived from it.
TEXT_BYTES_PER_TOKEN: Final = 4

# Text is hashed on the loop (the bail rung exists because there was no thread to be had):
# 64 KiB in blocks of 64 bytes is 1,024 hashes, about 0.15 ms. Prompts that agree for longer
# than this are told apart by their load alone.
TEXT_LIMIT_BYTES: Final = 64 * 1024

# Blocks unpacked per struct call: long enough that the loop runs in C, short enough that the
# compiled format (one code per block) stays small and is shared by prompts of every length.
_BATCH: Final = 64


@lru_cache(maxsize=64)
def _splitter(block_bytes: int, blocks: int) -> Struct:
    return Struct(f"{block_bytes}s" * blocks)


def _root(domain: bytes, block_bytes: int, salt: bytes) -> bytes:
    """Return the start of a chain; the salt comes last, so no salt can imitate another domain."""
    digest = xxh3_64_intdigest(b"%s:%d:%s" % (domain, block_bytes, salt))
    return digest.to_bytes(HASH_BYTES, sys.byteorder)


def _chain(
    payload: bytes, start_bytes: int, end_bytes: int, block_bytes: int, last: bytes
) -> bytes:
    """Return the chain behind `last`, of the full blocks of payload[start_bytes:end_bytes]."""
    blocks = (end_bytes - start_bytes) // block_bytes
    if xxh3.NATIVE and block_bytes == xxh3.BLOCK_BYTES:
        return xxh3.chained(payload, start_bytes, blocks, last)
    whole = blocks // _BATCH * _BATCH
    batched = memoryview(payload)[start_bytes : start_bytes + whole * block_bytes]
    head = _splitter(block_bytes, _BATCH).iter_unpack(batched)
    tail = _splitter(block_bytes, blocks - whole).unpack_from(
        payload, start_bytes + whole * block_bytes
    )
    digest = xxh3_64_intdigest
    previous = int.from_bytes(last, sys.byteorder)
    return array(
        "Q",
        [previous := digest(block, previous) for block in chain(chain.from_iterable(head), tail)],
    ).tobytes()


def block_hashes(
    ids: bytes,
    block_tokens: int,
    salt: bytes = b"",
    known: bytes = b"",
    end_bytes: int = sys.maxsize,
) -> bytes:
    """Chained hashes of the full blocks of `ids`.

    ids: packed uint32, any length; of which only the first end_bytes count. block_tokens: tokens
    per block, >= 1. salt: whatever must separate caches (model name, tenant, cache_salt). known:
    what this function returned for a prefix of `ids`, with the same block size and salt; the chain
    goes on behind it. Returns packed native uint64, one per full block; b"" when not even one is
    full. About 1 ms for 100k tokens in blocks of 16; compiled 0.2 ms.
    """
    if block_tokens < 1:
        raise ValueError("block_tokens must be at least 1")
    block_bytes = 4 * block_tokens
    last = known[-HASH_BYTES:] if known else _root(b"ids", block_bytes, salt)
    start_bytes = len(known) // HASH_BYTES * block_bytes
    return known + _chain(ids, start_bytes, min(end_bytes, len(ids)), block_bytes, last)


def more_hashes(ids: bytes, block_tokens: int, after: bytes) -> bytes:
    """Return the chain of `block_hashes`, continued by the blocks of `ids` behind the hash `after`
    (8 packed bytes): for those who no longer hold what came before."""
    return _chain(ids, 0, len(ids), 4 * block_tokens, after)


def hashing_mark(block_tokens: int, salt: bytes = b"") -> bytes:
    """Return the hash of a sample block: equal where prompts are hashed alike, on any machine."""
    return block_hashes(array("I", range(block_tokens)).tobytes(), block_tokens, salt)


def text_hashes(
    text: bytes, block_tokens: int, salt: bytes = b"", limit_bytes: int = TEXT_LIMIT_BYTES
) -> bytes:
    """Chained hashes of the start of a prompt's text, for requests whose ids are not known.

    text: the rendered prompt, or the raw bytes of the fields that make it. A block is
    TEXT_BYTES_PER_TOKEN * block_tokens bytes; at most `limit_bytes` are looked at. Same shape as
    `block_hashes`, and never equal to any of its hashes (another root).
    """
    if block_tokens < 1:
        raise ValueError("block_tokens must be at least 1")
    block_bytes = TEXT_BYTES_PER_TOKEN * block_tokens
    end_bytes = min(limit_bytes, len(text))
    return _chain(text, 0, end_bytes, block_bytes, _root(b"text", block_bytes, salt))

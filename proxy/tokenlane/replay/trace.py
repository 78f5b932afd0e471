"""Traces: who asked for how much, when, and which prefixes were shared.

The Mooncake form, one JSON object a line: `timestamp` (ms), `input_length`, `output_length`
(tokens) and `hash_ids`, one number for each block of 512 prompt tokens, the last perhaps partial.
Equal numbers are equal blocks after equal blocks.

Invariants:
- Requests are in order of arrival, the first at 0 s.
- A prompt's blocks are chained hashes, packed as the index takes them: the product's own chain over
  the trace's numbers, one to a block.
- What is wrong with a file is one sentence with its line (TraceError).
"""

import gzip
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from tokenlane.errors import ConfigError
from tokenlane.tokens.blocks import block_hashes

MOONCAKE_BLOCK_TOKENS = 512


class TraceError(ConfigError):
    """The file cannot be replayed; one sentence."""


class Request(NamedTuple):
    """arrival_s: since the trace's first request. blocks: packed uint64, of the whole prompt.
    parent: a number for who waits for it, 0 for nobody."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: bytes
    parent: int = 0

    @property
    def block_numbers(self) -> Sequence[int]:
        """The hashes one by one."""
        return memoryview(self.blocks).cast("Q")


class Trace(NamedTuple):
    """A trace and the size of its blocks. seen_hit: the share of its prompt tokens that caches had
    when it was recorded, where that is known."""

    name: str
    block_tokens: int
    requests: list[Request]
    seen_hit: float | None = None

    @property
    def prompt_tokens(self) -> int:
        """Of all requests together."""
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def working_set_blocks(self) -> int:
        """Distinct blocks: what a cache that never evicts would hold in the end."""
        distinct: set[int] = set()
        for request in self.requests:
            distinct.update(request.block_numbers)
        return len(distinct)

    def faster(self, speed: float) -> "Trace":
        """The same requests, arriving `speed` times as fast."""
        requests = [r._replace(arrival_s=r.arrival_s / speed) for r in self.requests]
        return self._replace(requests=requests)

    def spread(self, seed: int) -> "Trace":
        """The same requests, each later by a random part of the clock's tick: what was recorded
        with one tick did not come at once. The tick is the smallest step between arrivals."""
        random = Random(seed)
        times = [request.arrival_s for request in self.requests]
        tick_s = min((b - a for a, b in pairwise(times) if b > a), default=0.0)
        moved = [
            r._replace(arrival_s=r.arrival_s + tick_s * random.random()) for r in self.requests
        ]
        return self._replace(requests=sorted(moved, key=attrgetter("arrival_s")))

    def first(self, limit_s: float) -> "Trace":
        """The requests that arrive before `limit_s`."""
        requests = [r for r in self.requests if r.arrival_s < limit_s]
        return self._replace(requests=requests, seen_hit=None)


class Row(msgspec.Struct):
    """A line of a Mooncake trace; other fields are ignored. timestamp: ms."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def packed(hash_ids: Iterable[int]) -> bytes:
    """Blocks named by numbers, as the chained hashes of the index."""
    return block_hashes(array("I", hash_ids).tobytes(), 1)


def lines(path: Path) -> Iterator[bytes]:
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            yield from file
    else:
        with path.open("rb") as file:
            yield from file


def rows(path: Path) -> list[Row]:
    """The lines of a Mooncake JSONL file, gzipped or not, by time. Raises TraceError."""
    found: list[Row] = []
    decode = msgspec.json.Decoder(Row).decode
    number = 0
    try:
        for line in lines(path):
            number += 1
            if line.strip():
                row = decode(line)
                _check(row)
                found.append(row)
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}:{number}: is no line of a Mooncake trace ({error})") from None
    except ValueError as error:
        raise TraceError(f"{path}:{number}: {error}") from None
    except EOFError:
        raise TraceError(f"{path}: the gzip file is cut short") from None
    except OSError as error:
        why = error.strerror or "not a gzip file"
        raise TraceError(f"{path}: cannot be read ({why})") from None
    if not found:
        raise TraceError(f"{path}: has no requests")
    return sorted(found, key=lambda row: row.timestamp)


def read(path: Path) -> Trace:
    """The trace in a Mooncake JSONL file. Raises TraceError."""
    found = rows(path)
    began_ms = found[0].timestamp
    requests = [
        Request(
            (row.timestamp - began_ms) / 1e3,
            row.input_length,
            row.output_length,
            packed(row.hash_ids),
        )
        for row in found
    ]
    return Trace(name_of(path), MOONCAKE_BLOCK_TOKENS, requests)


def name_of(path: Path) -> str:
    """What a trace in this file is called."""
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def _check(row: Row) -> None:
    """Raises ValueError with what a simulated replica could not make sense of."""
    blocks = -(-row.input_length // MOONCAKE_BLOCK_TOKENS)
    if row.input_length < 1 or row.output_length < 0:
        raise ValueError("input_length must be positive, output_length not negative")
    if len(row.hash_ids) not in {blocks, row.input_length // MOONCAKE_BLOCK_TOKENS}:
        raise ValueError(
            f"{row.input_length} prompt tokens are {blocks} blocks of"
            f" {MOONCAKE_BLOCK_TOKENS}, not {len(row.hash_ids)}"
        )
    if any(not 0 <= one < 2**32 for one in row.hash_ids):
        raise ValueError("hash_ids must be numbers from 0 to 4294967295")

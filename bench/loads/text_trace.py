"""A trace of agent conversations: prompts as text, and what the best cache could give for them.

Invariants:
- Requests are in the order of their timestamps, sessions interleaved as they were.
- The bound is computed from token ids alone: one cache that loses nothing, in blocks of the
  replica's size, where the last token of a prompt is always computed (as vLLM does).
"""

import gzip
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bench.tools.processes import BenchError


class Row(msgspec.Struct):
    """A line of the file. timestamp: microseconds. output: the answer, where the trace has it."""

    timestamp: int
    input: str
    session_id: str
    output: str = ""


class Turn(msgspec.Struct, frozen=True):
    """One request of the replay. due_s: since the trace's start. body: chat completion, JSON."""

    session: str
    due_s: float
    body: bytes


def rows(path: Path) -> list[Row]:
    """The trace's lines by time. Raises BenchError with what is wrong with the file."""
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        found = msgspec.json.Decoder(Row).decode_lines(text)
    except OSError as error:
        raise BenchError(f"{path}: cannot be read ({error.strerror or error})") from None
    except msgspec.DecodeError as error:
        raise BenchError(f"{path}: is not a text trace, one JSON object a line ({error})") from None
    if not found:
        raise BenchError(f"{path}: holds no requests")
    return sorted(found, key=lambda row: row.timestamp)


def turns(trace: Iterable[Row], model: str, output_tokens: int) -> list[Turn]:
    """The trace as requests to send."""
    ordered = list(trace)
    return [
        Turn(
            row.session_id,
            (row.timestamp - ordered[0].timestamp) / 1e6,
            msgspec.json.encode(
                {
                    "model": model,
                    "messages": [{"role": "user", "content": row.input}],
                    "max_tokens": output_tokens,
                }
            ),
        )
        for row in ordered
    ]


def bound_tokens(prompts: Iterable[bytes], block_tokens: int) -> int:
    """Cached tokens that one replica with an infinite cache would report for all prompts.

    prompts: packed uint32, in the order of their arrival.
    """
    # Prefixes get numbers: a block's content after a numbered prefix is the next number, so equal
    # numbers mean equal prefixes, without trusting the hashes that are being judged.
    numbers: dict[tuple[int, bytes], int] = {}
    total = 0
    size = 4 * block_tokens
    for ids in prompts:
        usable = max(len(ids) // 4 - 1, 0) // block_tokens
        prefix = cached = 0
        for position, at in enumerate(range(0, len(ids) // size * size, size)):
            key = prefix, ids[at : at + size]
            if key in numbers and position < usable:
                cached += 1
            prefix = numbers.setdefault(key, len(numbers) + 1)
        total += cached * block_tokens
    return total

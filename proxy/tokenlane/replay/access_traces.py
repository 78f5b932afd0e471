"""An access log as a trace: who asked when, for how much, and beginning with what.

Invariants:
- What was never sent to a replica, or whose ids were not known, is left out; it is no error.
- Only requests whose lines were written can be replayed: a log that samples tells of a quieter
  fleet with fewer hits.
- Between two marks of a prompt nothing is known: a match ends at the last mark that is alike.
"""

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from tokenlane.replay.trace import Request, Trace, TraceError, lines, name_of
from tokenlane.telemetry.log import prompt_prefix

# The status of a request whose client left before its answer.
_CLIENT_GONE = 499


class LogLine(msgspec.Struct):
    """What a replay needs of a line; other fields are ignored. time: UTC, of the request's end."""

    request_id: str
    time: datetime
    status: int
    duration_s: float
    model: str
    prompt_tokens_predicted: int | None = None
    cached_tokens_actual: int | None = None
    output_tokens: int = 0
    prefix_block_tokens: int = 0
    prefix: str = ""


class _Seen(NamedTuple):
    """A line that can be replayed."""

    line: LogLine
    request: Request


def read(path: Path, model: str | None) -> Trace | None:
    """The trace in an access log; None where the file is none, or cannot be read at all. model:
    only requests for this one. Raises TraceError."""
    decode = msgspec.json.Decoder(LogLine).decode
    found: list[_Seen] = []
    number, known = 0, False
    try:
        for text in lines(path):
            number += 1
            if not text.startswith(b"{"):
                continue  # standard output has other lines too
            if not known and b'"request_id"' not in text:
                return None
            line, known = decode(text), True
            if line.prefix_block_tokens and (line.status < 400 or line.status == _CLIENT_GONE):
                found.append(_Seen(line, _request(line)))
    except (msgspec.DecodeError, ValueError) as error:
        raise TraceError(f"{path}:{number}: is no line of an access log ({error})") from None
    except (OSError, EOFError):
        return None
    return _trace(path, found, model) if known else None


def _request(line: LogLine) -> Request:
    arrival_s = line.time.timestamp() - line.duration_s
    return Request(
        arrival_s,
        line.prompt_tokens_predicted or 1,
        line.output_tokens,
        prompt_prefix.read(line.prefix),
    )


def _trace(path: Path, found: list[_Seen], model: str | None) -> Trace:
    models = Counter(one.line.model for one in found)
    if model is not None:
        found = [one for one in found if one.line.model == model]
    elif len(models) > 1:
        raise TraceError(
            f"{path}: has requests for {', '.join(sorted(models))}; choose one with --model"
        )
    if not found:
        raise TraceError(
            f"{path}: has no request that can be replayed; log.prefix_block_tokens must be set,"
            f" and models are {', '.join(sorted(models)) or 'none'}"
        )
    sizes = {one.line.prefix_block_tokens for one in found}
    if len(sizes) > 1:
        raise TraceError(f"{path}: prefix_block_tokens changed within it: {sorted(sizes)}")
    found.sort(key=lambda one: one.request.arrival_s)
    began_s = found[0].request.arrival_s
    requests = [one.request._replace(arrival_s=one.request.arrival_s - began_s) for one in found]
    return Trace(name_of(path), sizes.pop(), requests, _seen_hit(found))


def _seen_hit(found: list[_Seen]) -> float | None:
    """Of those whose replicas said what they found."""
    told = [one for one in found if one.line.cached_tokens_actual is not None]
    if not told:
        return None
    prompt_tokens = sum(one.request.prompt_tokens for one in told)
    return sum(one.line.cached_tokens_actual or 0 for one in told) / prompt_tokens

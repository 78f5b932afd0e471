"""Lines of the access log: one request as JSON or as text for people. Pure.

Invariants:
- What a line may hold is this list: closed words, numbers, the request's id and, only where asked
  for, hashes of the prompt's beginning. No header, no prompt, no key, no address of a client can
  get into it.
- A line is one line, whatever a client chose as its id or a replica as its model's name, and short
  enough to be written to a pipe in one piece.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec

from tokenlane.telemetry.log import prompt_prefix
from tokenlane.telemetry.log.setup import printable
from tokenlane.telemetry.metrics.families import STAGES

ID_LIMIT = 128
# Memory of a queued entry without its marks, about.
ENTRY_BYTES = 1000
_encode = msgspec.json.Encoder().encode


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A request that is over, in scalars: nothing here keeps a prompt alive.

    ended_s: time.monotonic(). why: failed, slow or sampled. stages_s: of families.STAGES, as far as
    the request came. error_code: of our error, or why the answer broke off. bail: why no ids.
    cached_tokens: predicted, and as the replica reports it. cost: estimated, in the prices' unit.
    marks: of the prompt's beginning, one for each mark_tokens
    (tokenlane.telemetry.log.prompt_prefix).
    """

    ended_s: float
    why: str
    request_id: bytes
    route: str
    model: str
    status: int
    outcome: str
    duration_s: float
    stages_s: list[float]
    method: str = "POST"
    error_code: str | int | None = None
    ttft_s: float | None = None
    replica: str | None = None
    attempts: int = 0
    policy: str | None = None
    reason: str | None = None
    rung: str | None = None
    bail: str | None = None
    prompt_tokens: int | None = None
    prompt_tokens_actual: int | None = None
    cached_tokens: int | None = None
    cached_tokens_actual: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    tenant: str = ""
    marks: bytes = b""
    mark_tokens: int = 0


def _seconds(value: float) -> float:
    return round(value, 6)


def _id(entry: Entry) -> str:
    text = entry.request_id[:ID_LIMIT].decode("ascii", "backslashreplace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def json_line(entry: Entry, unix_s: float, worker: int) -> bytes:
    """Return one JSON object and a newline; unknown values are left out. unix_s: when it ended."""
    fields: dict[str, Any] = {
        "time": _moment(unix_s),
        "request_id": _id(entry),
        "tenant": entry.tenant,
        "method": entry.method,
        "route": entry.route,
        "model": printable(entry.model),
        "status": entry.status,
        "outcome": entry.outcome,
        "error_code": entry.error_code,
        "logged": entry.why,
        "worker": worker,
        "replica": entry.replica,
        "attempts": entry.attempts,
        "policy": entry.policy,
        "reason": entry.reason,
        "rung": entry.rung,
        "bail": entry.bail,
        "prompt_tokens_predicted": entry.prompt_tokens,
        "prompt_tokens_actual": entry.prompt_tokens_actual,
        "cached_tokens_predicted": entry.cached_tokens,
        "cached_tokens_actual": entry.cached_tokens_actual,
        "output_tokens": entry.output_tokens,
        "estimated_cost": None if entry.cost is None else round(entry.cost, 9),
        "ttft_s": None if entry.ttft_s is None else _seconds(entry.ttft_s),
        "duration_s": _seconds(entry.duration_s),
        "stages_s": dict(zip(STAGES, map(_seconds, entry.stages_s), strict=False)),
        "prefix_block_tokens": entry.mark_tokens or None,
        "prefix": prompt_prefix.written(entry.marks) if entry.mark_tokens else None,
    }
    return _encode({name: value for name, value in fields.items() if value is not None}) + b"\n"


def text_line(entry: Entry, unix_s: float, worker: int) -> bytes:
    """Return a line for people: time, status, path, replica and reason, tokens, times, id."""
    words = [_moment(unix_s)[11:-1], str(entry.status), entry.route, entry.model]
    if entry.tenant:
        words.append(f"for {entry.tenant}")
    if entry.outcome != "ok":
        words.append(entry.outcome)
    if entry.error_code is not None:
        words.append(f"({entry.error_code})")
    if entry.replica is not None:
        words.append(f"-> {entry.replica} ({entry.policy} {entry.reason})")
    if entry.attempts > 1:
        words.append(f"attempt {entry.attempts}")
    if entry.prompt_tokens is not None:
        cached = entry.cached_tokens_actual
        cached = entry.cached_tokens if cached is None else cached
        of_them = "" if cached is None else f" ({cached} cached)"
        words.append(f"{entry.prompt_tokens} tokens{of_them} by {entry.rung}")
    elif entry.bail is not None:
        words.append(f"no ids: {entry.bail}")
    if entry.output_tokens:
        words.append(f"+{entry.output_tokens}")
    if entry.ttft_s is not None:
        words.append(f"first token {entry.ttft_s * 1e3:.1f} ms")
    words += [f"{entry.duration_s * 1e3:.1f} ms", f"w{worker}", _id(entry)]
    return printable(" ".join(words)).encode() + b"\n"

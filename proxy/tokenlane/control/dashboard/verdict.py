"""Whether the gateway is healthy, as one sentence: who is up, who is not and why, what was lost.
Pure."""

import time
from collections.abc import Sequence

from tokenlane.control.dashboard.live import ReplicaRow, Verdict

# Up; with as many requests as it may have; with a part of its share, since it came back just now.
_SERVING = ("up", "full", "starting")
# Of replicas in trouble, so many are named.
_NAMED = 3
# Why a replica is down, by the last probe's reason (a key of `fleet_table.ADVICE`).
WHY = {
    "refused": "connection refused",
    "unreachable": "no way to it",
    "tls": "no TLS with it",
    "timeout": "no answer in time",
    "status": "its /health answers {status}",
    "descriptors": "no file descriptor left to ask it",
    "protocol": "no HTTP of vLLM",
}


def verdict(
    unready: str | None, replicas: Sequence[ReplicaRow], cut: int, cut_lately: int
) -> Verdict:
    """Return the sentence. cut: answers that broke off in the last hour; cut_lately: of these, in
    the last minutes."""
    out = [row for row in replicas if row.state not in _SERVING]
    slow = [row for row in replicas if row.state in _SERVING and row.times_slower is not None]
    starved = [row for row in replicas if row.starved]
    up = len(replicas) - len(out)
    parts = [unready.rstrip(".")] if unready is not None else []
    parts.append(f"all {up} up" if not out and up > 1 else f"{up} of {len(replicas)} up")
    parts += [_trouble(row) for row in out[:_NAMED]]
    parts += [f"and {len(out) - _NAMED} more"] if len(out) > _NAMED else []
    parts += [f"{row.id} is {row.times_slower:.0f} times slower" for row in slow[:_NAMED]]
    parts += [f"{row.id}'s front end is starved" for row in starved[:_NAMED]]
    if cut:
        parts.append(f"{cut} answer{'s' if cut > 1 else ''} cut")
    troubled = out or slow or starved or cut_lately
    level = "bad" if unready is not None else "warn" if troubled else "good"
    return Verdict(text="; ".join(parts), level=level)


def _trouble(row: ReplicaRow) -> str:
    since = ""
    if row.since_s is not None:
        since = f" since {time.strftime('%H:%M', time.localtime(row.since_s))}"
    return f"{row.id} {row.state}{since}" + (f", {row.why}" if row.why else "")

"""What a soak must have left: every request with one end, the same in every book. Pure.

Four books are held against each other by the requests' ids: what the clients saw, the gateway's
access log, its counters, and the replicas' log of what their engines took.

Invariants:
- A request is excused only if its very connection was the killed worker's; a line of the access
  log may be missing only of a request that ended around such a kill.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Lines of the access log that wait to be written die with their worker; what ended in this time.
UNWRITTEN_S = 5.0
_SHOWN = 5

# What the gateway may have written of a request that its client saw end like this.
_SAME = {
    "whole": {"ok"},
    "failed": {"ok", "upstream_error"},
    "refused": {"ok", "client_error", "gateway_error", "upstream_error"},
    "truncated": {"truncated", "upstream_error", "client_gone"},
}


# What the accept queue does to a client's first request.
_AT_THE_DOOR = "refused with its connection, and not in the access log"


@dataclass
class Asked:
    """A request as its client saw it. Times: monotonic seconds. port: the client's own, connected
    between `connecting_s` and `connected_s`. kind: of client. nth: of its connection's requests.

    outcome: open (not over), whole, failed (whole, and says that its generation failed), refused
    (an error in OpenAI's shape), truncated (begun, and visibly not whole), left (by the client);
    and what must not be: lost (no answer), hung, wrong (not its own answer, or none at all).
    """

    id: str
    connecting_s: float
    connected_s: float
    sent_s: float
    port: int
    kind: str = ""
    nth: int = 0
    outcome: str = "open"
    status: int = 0
    ended_s: float = 0.0


@dataclass(frozen=True)
class Kill:
    """A worker's end, at `at_s`, stopped since `since_s`. ports: of the clients connected to it,
    and of those to nobody yet, as looked up then; who connected in between may have been its
    client too."""

    since_s: float
    at_s: float
    ports: frozenset[int]
    worker: int = 1

    def excuses(self, asked: Asked) -> bool:
        """Whether the request was on one of its connections."""
        was_there = asked.port in self.ports and asked.connecting_s <= self.since_s
        came = self.since_s <= asked.connected_s and asked.connecting_s <= self.at_s
        return (was_there or came) and (not asked.ended_s or asked.ended_s >= self.since_s)

    def may_lack_line(self, asked: Asked) -> bool:
        """Whether the line of the request may have died with the worker."""
        return asked.sent_s <= self.at_s and (
            not asked.ended_s or asked.ended_s >= self.since_s - UNWRITTEN_S
        )


@dataclass(frozen=True)
class Books:
    """lines: of the access log. executions: of the replicas, by request id. counted: requests by
    the gateway's counters. at_the_door: of these, refused by the accept queue, which writes no
    lines."""

    asked: Sequence[Asked]
    lines: Sequence[Mapping[str, Any]]
    executions: Counter[str]
    kills: Sequence[Kill]
    counted: int
    at_the_door: int = 0


def problems(books: Books) -> list[str]:
    """What does not agree, in sentences; nothing if every request is accounted for."""
    kills = books.kills
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for line in books.lines:
        lines.setdefault(str(line["request_id"]), []).append(line)
    found: dict[str, list[str]] = {}
    missing = 0
    for asked in books.asked:
        written = lines.get(asked.id, [])
        ran = books.executions[asked.id]
        missing += not written
        for what in _of(asked, written, ran, kills):
            found.setdefault(what, []).append(asked.id)
    if len(found.get(_AT_THE_DOOR, ())) <= books.at_the_door:
        found.pop(_AT_THE_DOOR, None)
    told = [
        f"{len(ids)} x {what}: {', '.join(ids[:_SHOWN])}" for what, ids in sorted(found.items())
    ]
    total = sum(map(len, lines.values()))
    if not total <= books.counted <= total + missing:
        told.append(f"{books.counted} counted, {total} in the access log, {missing} without a line")
    return told


def _of(
    asked: Asked, written: list[Mapping[str, Any]], ran: int, kills: Sequence[Kill]
) -> Iterable[str]:
    # What another worker wrote of was none of the killed one's.
    writers = {line.get("worker") for line in written}
    excused = any(kill.excuses(asked) and writers <= {kill.worker} for kill in kills)
    if len(written) > 1:
        yield "written more than once"
    if ran > 1:
        yield "executed more than once"
    if asked.outcome == "whole" and ran == 0:
        yield "answered without an execution"
    if asked.outcome in ("open", "lost", "hung", "wrong") and not (
        excused and asked.outcome == "lost"
    ):
        which = "the first" if asked.nth == 1 else "not the first"
        yield f"{asked.outcome}, {which} on its connection"
    if excused or asked.outcome not in _SAME:
        return
    if not written:
        if not any(kill.may_lack_line(asked) for kill in kills):
            first = (asked.outcome, asked.status, asked.nth) == ("refused", 503, 1)
            yield _AT_THE_DOOR if first else f"{asked.outcome}, and not in the access log"
        return
    line = written[0]
    if line["outcome"] not in _SAME[asked.outcome]:
        yield f"{asked.outcome} to its client, {line['outcome']} in the access log"
    elif line["status"] != asked.status:
        yield f"{asked.status} to its client, {line['status']} in the access log"

"""The corpus: raw requests and what becomes of them. Our own data, by topic in the modules beside.

Invariants:
- A case says all that a client can see (statuses, whether the connection stays) and all that a
  replica sees (every request, its target, its body, chosen fields): nothing else may happen.
- Bad heads are those of tests/http/heads.py, so parser, server and gateway are held to one table.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from tests.http.heads import BAD_HEADS, CANARY
from tests.raw import CHAT, chat, chunk, post

BODY = chat("one")
HIDDEN = post(CHAT + "?hidden", chat("two"))
CHUNKED_HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()
Seen = tuple[bytes, bytes]


@dataclass(frozen=True)
class Case:
    """statuses: of the answers, interim ones aside. closes: the gateway ends the connection after
    the last one. seen: (target, body) of each request a replica gets; by default one plain chat
    for each 200. fields: lower-case names and values each of those requests carries, None for
    names it must not. waits: the input is unfinished, so a deadline ends it. differs: why nginx
    or HAProxy may do otherwise, a key of REASONS."""

    row: str
    name: str
    data: bytes
    statuses: tuple[int, ...] = (200,)
    closes: bool = False
    seen: tuple[Seen, ...] | None = None
    fields: dict[bytes, bytes | None] = field(default_factory=dict)
    method: str = "POST"
    waits: bool = False
    differs: str = ""

    @property
    def id(self) -> str:
        """The test's name."""
        return f"{self.row}-{self.name}"

    @property
    def asked(self) -> tuple[Seen, ...]:
        """What the replica must have seen."""
        if self.seen is not None:
            return self.seen
        return ((CHAT.encode(), BODY),) * self.statuses.count(200)


REASONS = {
    "strict": "The RFC lets a recipient forgive this; two readings of it exist, so it is refused.",
    "routes": "The gateway serves a closed list of paths and methods; a proxy passes any.",
    "limit": "Other limits.",
    "status": "Refused by both, under another status.",
    "target": "An absolute target is reduced to its path here; its authority chooses nothing.",
    "old": "HTTP/1.0 without a Host, or with keep-alive: passed where one reading exists.",
    "interim": "An expectation that nobody here can meet is refused (417), not passed on.",
    "coding": "Compressed bodies are not looked into, so they are refused (415).",
    "theirs": "It has one reading, so it is served here.",
}

_ROWS = (
    ("cl-te", "H1"), ("te-cl", "H1"), ("cl-", "H2"), ("te-", "H3"), ("host-", "H7"),
    ("target-long", "H8"), ("target-", "H7"), ("fields", "H8"), ("expect", "H12"), ("gzip", "O6"),
    ("version-", "H9"), ("preface", "H9"), ("trace", "H9"), ("connect", "H9"), ("method-", "H9"),
    ("two-spaces", "H9"), ("tab", "H9"), ("space-in-target", "H9"), ("space-at-end", "H9"),
    ("high-byte-in-target", "H9"), ("nothing", "H9"), ("words-before", "H9"),
)  # fmt: skip


def _bad_heads() -> Iterator[Case]:
    for name, status, _, head in BAD_HEADS:
        row = next((row for prefix, row in _ROWS if name.startswith(prefix)), "H6")
        differs = {"H8": "limit", "H12": "interim", "O6": "coding"}.get(row, "strict")
        if name.startswith(("method-", "trace", "connect")):
            differs = "routes"
        yield Case(row, name, head + HIDDEN, (status,), closes=True, differs=differs)


@cache
def cases() -> tuple[Case, ...]:
    """All of them."""
    from tests.conformance import bodies, connections, targets  # they build on this

    found = (*_bad_heads(), *bodies.CASES, *connections.CASES, *targets.CASES)
    assert len({case.id for case in found}) == len(found)
    return found


def request(*lines: str, start: str = f"POST {CHAT} HTTP/1.1", body: bytes = BODY) -> bytes:
    """A chat with more header lines, or another request line."""
    head = "\r\n".join((start, "host: x", *lines, f"content-length: {len(body)}", "", ""))
    return head.encode("latin-1") + body


def chunked(*parts: bytes) -> bytes:
    """A chunked chat made of these bytes."""
    return CHUNKED_HEAD + b"".join(parts)


__all__ = ["BODY", "CANARY", "HIDDEN", "REASONS", "Case", "cases", "chunk", "chunked", "request"]

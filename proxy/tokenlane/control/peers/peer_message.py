"""What one gateway tells the others: an entry of the stream that they share.

Invariants:
- Replicas are known by a hash of their ids (host and port): slots differ between gateways.
- Loads are absolute, so a message that was missed is made good by the next one about the replica.
- Fields are only ever added, and those of a newer version are skipped. What cannot be said so is
  another FORMAT, which older gateways skip whole.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
import xxhash
from msgspec import Meta

from tokenlane.errors import UNREADABLE
from tokenlane.routing.response_homes import NAME_LIMIT_CHARS

FORMAT = 1
_MOST = 2**32 - 1
_LOAD = struct.Struct("<QII")

# Requests and queued tokens. No struct: there are tens of thousands a second.
Load = tuple[int, int]
NO_LOAD: Load = (0, 0)
# A stored response: its name, the replica that keeps it, whose it is.
Home = tuple[
    Annotated[str, Meta(max_length=NAME_LIMIT_CHARS)], int, Annotated[str, Meta(max_length=64)]
]


class PeerMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gateway's news.

    gateway: of this process alone. loads: packed, by replica. places: of tenants, held (or claimed)
    and wanted, by key. prefixes: that it routed (tokenlane.routing.shared_prefixes). responses:
    that it knows of. whole: these loads and places are all that it has; otherwise those that
    changed. leaves: it ends, and has nothing in flight any more. In whole messages: name and
    version for people, sent_s by its wall clock (Unix time).
    """

    gateway: str
    format: int = FORMAT
    loads: bytes = b""
    whole: bool = False
    leaves: bool = False
    name: str = ""
    version: str = ""
    sent_s: float = 0.0
    places: dict[str, tuple[int, int]] = {}
    prefixes: bytes = b""
    responses: Sequence[Home] = ()


_decoder = msgspec.msgpack.Decoder(PeerMessage)
encode = msgspec.msgpack.Encoder().encode


def decode(data: bytes) -> PeerMessage | None:
    """Return the message; None for one of another format, or for none at all."""
    try:
        message = _decoder.decode(data)
    except UNREADABLE:
        return None
    return message if message.format == FORMAT and not len(message.loads) % _LOAD.size else None


def replica_key(replica: str) -> int:
    """Return what a replica is called between gateways. replica: its id."""
    return xxhash.xxh3_64_intdigest(replica.encode())


def packed(loads: Iterable[tuple[int, Load]]) -> bytes:
    """Return loads as bytes."""
    return b"".join(
        _LOAD.pack(key, min(max(requests, 0), _MOST), min(max(queued_tokens, 0), _MOST))
        for key, (requests, queued_tokens) in loads
    )


def unpacked(loads: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield what was packed: replica, requests, queued tokens."""
    return _LOAD.iter_unpack(loads)

"""The queue of connections that the kernel has made for a listening socket and nobody has accepted.

Invariants:
- Reading it costs two system calls, however long the queue is. Where Linux does not report it, it
  reads as empty.
"""

import socket
import struct
from typing import NamedTuple

# For a listener, TCP_INFO's `unacked` is the queue's length and `sacked` its limit.
_UNACKED = struct.Struct("=24xII")
# SO_MEMINFO: a row of uint32; the last is the count of drops.
_SO_MEMINFO = 55
_DROPS = struct.Struct("=32xI")


class AcceptQueue(NamedTuple):
    """The queue now. limit: beyond it, new clients are dropped. dropped: drops since the socket
    listens; a client's kernel tries again after a second, then after longer."""

    waiting: int = 0
    limit: int = 0
    dropped: int = 0


def look(listener: socket.socket) -> AcceptQueue:
    """Return the queue of this listening socket."""
    try:
        waiting, limit = _UNACKED.unpack(
            listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED.size)
        )
        (dropped,) = _DROPS.unpack(listener.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _DROPS.size))
    except (OSError, struct.error):
        return AcceptQueue()
    return AcceptQueue(waiting, limit, dropped)

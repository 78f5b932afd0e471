"""The queue of connections that the kernel has made for a listening socket and nobody has accepted.

Invariants:
- A look costs two system calls, however long the queue is. Where Linux does not tell, it is empty.
"""

import socket
import struct
from typing import NamedTuple

# Of a listener Linux says in TCP_INFO's `unacked` how many wait, and in `sacked` how many may.
_UNACKED = struct.Struct("=24xII")
# SO_MEMINFO: a row of uint32, the last of which is how often something was dropped.
_SO_MEMINFO = 55
_DROPS = struct.Struct("=32xI")


class AcceptQueue(NamedTuple):
    """As it is now. limit: with more waiting, what comes is dropped. dropped: how often that was,
    since the socket listens; a client's kernel tries again after a second, then after longer."""

    waiting: int = 0
    limit: int = 0
    dropped: int = 0


def look(listener: socket.socket) -> AcceptQueue:
    """The queue of this listening socket."""
    try:
        waiting, limit = _UNACKED.unpack(
            listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED.size)
        )
        (dropped,) = _DROPS.unpack(listener.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _DROPS.size))
    except (OSError, struct.error):
        return AcceptQueue()
    return AcceptQueue(waiting, limit, dropped)

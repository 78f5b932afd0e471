"""The queue of connections that the kernel has made for a listening socket and nobody has accepted.

Invariants:
- Reading it costs two system calls, however long the queue is. Where Linux does not report it, it
  reads as empty.
- Who is in it or on the way to it can still be accepted after `close_to_new`.
"""

import contextlib
import ctypes
import socket
import struct
from typing import NamedTuple

# For a listener, TCP_INFO's `unacked` is the queue's length and `sacked` its limit.
_UNACKED = struct.Struct("=24xII")
# SO_MEMINFO: a row of uint32; the last is the count of drops.
_SO_MEMINFO = 55
_DROPS = struct.Struct("=32xI")
# asm-generic/socket.h; the socket module does not have it.
_SO_ATTACH_FILTER = 26


class _Instruction(ctypes.Structure):
    """struct sock_filter."""

    _fields_ = [
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("operand", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [
        ("length", ctypes.c_uint16),
        ("instructions", ctypes.POINTER(_Instruction)),
    ]


# Classic BPF over a segment: its flags are in byte 13 of the TCP header.
_DROP_SYN = (_Instruction * 4)(
    _Instruction(0x30, 0, 0, 13),  # load the byte
    _Instruction(0x45, 0, 1, 0x02),  # SYN?
    _Instruction(0x06, 0, 0, 0),  # then drop it,
    _Instruction(0x06, 0, 0, 0xFFFFFFFF),  # else keep all of it
)


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


def close_to_new(listener: socket.socket) -> None:
    """Drop the first packet of each new client. Its kernel sends it again after a second, to
    another listener on the port if there is one by then. Without socket filters: do nothing."""
    program = _Program(len(_DROP_SYN), _DROP_SYN)
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))

"""Frames of a channel: uint32 little-endian length, then msgpack.

Invariants:
- A message is whole or absent, however its bytes are split.
- A message that cannot be decoded, or taken in, is skipped; one that is too long ends the channel.
"""

import asyncio
import logging
import math
import socket
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import msgspec

from tokenlane.channel.messages import Message

# A hundred thousand keys are some 15 MB.
FRAME_LIMIT_BYTES = 64 * 1024 * 1024
BACKLOG_LIMIT_BYTES = 1024 * 1024
# Of what others miss where it is lost.
LONG_BACKLOG_LIMIT_BYTES = 16 * BACKLOG_LIMIT_BYTES
_LENGTH_BYTES = 4

log = logging.getLogger("channel")

_encode_into = msgspec.msgpack.Encoder().encode_into
_In = TypeVar("_In")
_Out = TypeVar("_Out", bound=Message)


class Frames(asyncio.Protocol, Generic[_In, _Out]):
    """One end: frames in, messages out to a callback. on_lost: the other end is gone. Called once,
    and not if this side closed the channel."""

    def __init__(
        self,
        decode: Callable[[bytes | memoryview], _In],
        on_message: Callable[[_In], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._decode = decode
        self._on_message = on_message
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._closing = False
        self.transport: asyncio.Transport | None = None

    async def attach(self, end: socket.socket) -> None:
        """Take over this end of the socketpair."""
        end.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTH_BYTES:
            size = int.from_bytes(buffer[at : at + _LENGTH_BYTES], "little")
            if size > FRAME_LIMIT_BYTES:
                log.error("frame of %d bytes refused; channel closed", size)
                assert self.transport is not None
                self.transport.close()
                return
            end = at + _LENGTH_BYTES + size
            if len(buffer) < end:
                break
            try:
                self._on_message(self._decode(bytes(buffer[at + _LENGTH_BYTES : end])))
            except msgspec.DecodeError as error:
                # The other side is of another version. Frames stay aligned: skip this one.
                log.warning("skipped a message that cannot be decoded: %s", error)
            except Exception:
                # Raised from here, it would end the channel, and all that depends on it.
                log.exception("a message was not taken in; going on with the next")
            at = end
        del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if not self._closing:
            self._on_lost()

    def send(self, message: _Out) -> None:
        """Send a message. Does nothing if the other side is gone."""
        if self.transport is None:
            return
        frame = bytearray(_LENGTH_BYTES)
        _encode_into(message, frame, _LENGTH_BYTES)
        frame[:_LENGTH_BYTES] = (len(frame) - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "little")
        self.transport.write(frame)

    def offer(self, message: _Out, limit_bytes: int = BACKLOG_LIMIT_BYTES) -> bool:
        """Send unless the other side is further behind. Return False if the message was dropped."""
        if self._backlog_bytes > limit_bytes:
            return False
        self.send(message)
        return True

    @property
    def behind(self) -> bool:
        """Whether more is waiting to be written than should."""
        return self._backlog_bytes > BACKLOG_LIMIT_BYTES

    @property
    def _backlog_bytes(self) -> float:
        return math.inf if self.transport is None else self.transport.get_write_buffer_size()

    def close(self) -> None:
        """Close once everything sent has been written."""
        self._closing = True
        if self.transport is not None:
            self.transport.close()

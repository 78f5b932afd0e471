"""The listening socket: clients are accepted, wait in the kernel's queue, or are refused.

The loop accepts one client in each turn, so requests in flight come first and the rest wait in the
queue. `codel` decides who has waited too long.

Invariants:
- The kernel's queue outlives a pause: it is the listener's.
- A look at the queue is taken when a client comes, a few hundred times a second at most unless some
  wait; refusals are made in parts, with turns of the loop between them.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from tokenlane.errors import RequestError, server_error
from tokenlane.http.codel import CoDel
from tokenlane.http.local_reply import LocalReply
from tokenlane.http.server_state import ServerState
from tokenlane.runtime import accept_queue
from tokenlane.runtime.clock import monotonic
from tokenlane.telemetry.stalls.stages import LOOP, OTHER, PARSE

# Linux's default limit (somaxconn). A dropped client tries again after a second.
_BACKLOG_COUNT: Final = 4096
_LOOK_S: Final = 0.005
_SETTLE_S: Final = 1.0
_RETRY_S: Final = 0.1
# In a turn of the loop at most.
_REFUSED_COUNT: Final = 64
# What clients of the same region need for the rest of a handshake.
HANDSHAKE_S: Final = 0.05

log = logging.getLogger(__name__)


def too_many_clients() -> RequestError:
    """Return the answer to a client that waited too long to be accepted."""
    text = "More clients connect than the gateway can serve."
    return server_error(503, text, "too_many_clients", retry_after_s=1, close=True)


class Acceptor:
    """Accepts the clients of one server. make: returns a protocol for a new connection. room:
    returns how many more connections fit. reply: answers clients that are refused. on_shed: called
    with how many were."""

    def __init__(
        self,
        state: ServerState,
        make: Callable[[], asyncio.Protocol],
        room: Callable[[], int],
        reply: LocalReply,
        on_shed: Callable[[int], object],
    ) -> None:
        self._state = state
        self._make = make
        self._room = room
        self._reply = reply
        self._on_shed = on_shed
        self._server: asyncio.Server | None = None
        self._listener: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._taking: set[asyncio.Task[None]] = set()
        self._codel = CoDel()
        self._left = 0
        self._looking = False
        self._look_due_s = 0.0
        self._looked_s = 0.0
        self._refused = 0
        self._settling = False

    @property
    def open(self) -> bool:
        """Whether clients are accepted."""
        return self._server is not None

    async def listen(self, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept clients on a bound socket. tls: what they have to speak, if any."""
        self._listener, self._tls = sock, tls
        await self._accept()

    async def _accept(self) -> None:
        listener = self._listener
        assert listener is not None
        # Clients that arrived during a pause waited for a descriptor, not for the loop.
        self._codel, self._left = CoDel(), 0
        self._server = await self._state.loop.create_server(
            self._accepted,
            sock=listener.dup(),
            backlog=_BACKLOG_COUNT,
            ssl=self._tls,
            ssl_handshake_timeout=self._handshake_s,
        )

    @property
    def _handshake_s(self) -> float | None:
        return self._state.settings.head_deadline_s if self._tls is not None else None

    def pause(self) -> None:
        """Stop accepting: clients that the kernel has connected wait in its queue."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def resume(self) -> None:
        """Accept clients again."""
        self._resuming = self._state.loop.create_task(self._accept_again())

    async def _accept_again(self) -> None:
        while self._server is None and self._listener is not None:
            try:
                await self._accept()
            except OSError:  # there is no descriptor left
                await asyncio.sleep(_RETRY_S)

    async def close(self, handshake_s: float) -> None:
        """Close the listener, but serve the clients that the kernel has connected already: closed
        with the listener, they would lose what they have sent. handshake_s: those, too, whose
        handshake ends within this time; new ones wait then for the next listener on the port."""
        self.pause()
        queue, self._listener = self._listener, None
        if queue is None:
            return
        try:
            if handshake_s:
                accept_queue.close_to_new(queue)
                await asyncio.sleep(handshake_s)
        finally:
            with contextlib.suppress(OSError):  # the queue is empty, or there is no descriptor left
                while True:
                    self._take_soon(queue.accept()[0])
            queue.close()
        try:
            if self._taking:
                await asyncio.wait(self._taking)
        finally:
            if self._tls is not None:  # others are taken within a turn of the loop
                for task in self._taking:
                    task.cancel()

    async def _take(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):  # disconnected again, or too slow in its handshake
            await self._state.loop.connect_accepted_socket(
                self._make, sock, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )

    # -- too many ----------------------------------------------------------------------------

    def _accepted(self) -> asyncio.Protocol:
        """Note that the loop took a client out of the queue."""
        self._left += 1
        if not self._looking and self._state.loop.time() >= self._look_due_s:
            self._looking = True
            self._state.loop.call_soon(self._look)
        return self._make()

    def _look(self) -> None:
        self._looking = False
        target_s = self._state.settings.accept_wait_limit_s
        listener = self._listener
        if listener is None or self._server is None or not target_s:
            self._look_due_s = self._state.loop.time() + _SETTLE_S
            return
        LOOP.mark(PARSE)
        now_s = monotonic()
        waiting = accept_queue.look(listener).waiting
        left, self._left = self._left, 0
        due = min(self._codel.look(now_s, waiting, left, target_s), _REFUSED_COUNT)
        if due:
            self._refuse(listener, due, now_s)
        if waiting > due:
            takes = self._codel.takes(now_s - self._looked_s)
            room = self._room() - len(self._taking)
            self._take_more(listener, min(waiting - due, takes, room))
        self._looked_s = now_s
        self._look_due_s = 0.0 if waiting else self._state.loop.time() + _LOOK_S
        LOOP.mark(OTHER)

    def _take_more(self, listener: socket.socket, count: int) -> None:
        """Accept the few clients that wait, at once: a busy loop's turns are long, and they need
        not wait for one each."""
        with contextlib.suppress(OSError):
            for _ in range(count):
                self._take_soon(listener.accept()[0])

    def _take_soon(self, sock: socket.socket) -> None:
        self._left += 1
        task = self._state.loop.create_task(self._take(sock))
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)

    def _refuse(self, listener: socket.socket, count: int, now_s: float) -> None:
        if not self._settling:
            self._settling = True
            self._state.loop.call_later(_SETTLE_S, self._settle)
        if not self._refused:
            log.warning("more clients connect than can be served: some are refused")
        error = too_many_clients()
        refused = 0
        with contextlib.suppress(OSError):
            for _ in range(count):
                sock = listener.accept()[0]
                if self._tls is not None:  # an answer would need the handshake, which is expensive
                    sock.close()
                elif not self._reply.refuse(sock, error, now_s):
                    self._take_soon(sock)
                    continue
                refused += 1
        self._left += refused
        self._refused += refused
        self._on_shed(refused)

    def _settle(self) -> None:
        """Check now and then whether the overload is over."""
        self._settling = False
        lingers = self._reply.tidy(monotonic())
        self._look()
        over = self._listener is None or not self._codel.overloaded
        if lingers or not over:
            self._settling = True
            self._state.loop.call_later(_SETTLE_S, self._settle)
        if over and self._refused:
            log.warning("all clients are served again; %d were refused", self._refused)
            self._refused = 0

"""A replica's KV events over ZMQ: the live stream, and the replay of what was missed.

As vLLM 0.32: PUB frames [topic, number, payload]; on the replay socket a DEALER sends ["", first
number] and gets ["", topic, number, payload] for each message kept, then an end marker.

Invariants:
- Messages are numbered from 0 by each start. The ports stay the same over restarts.
- Everything is closed when `stop` returns.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from tokenlane.simulator.cache_log import Event, Spelling, spelled

BUFFER_LIMIT_MESSAGES = 10_000
_END = b"\xff" * 8
_encode = msgspec.msgpack.Encoder().encode


class KvPublisher:
    """The publisher of one replica. lose: so many live messages more are dropped on their way (a
    replay has them). silent: nothing is sent and no question is answered. answer_limit: messages of
    each answer; what is over is dropped, the end marker too, as vLLM does where its socket is
    full."""

    def __init__(self, spelling: Spelling, host: str) -> None:
        self._spelling: Spelling = spelling
        self._address = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        self._ports = 0, 0
        self._number = 0
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._live: zmq.Socket[bytes] | None = None
        self._replay: zmq.asyncio.Socket | None = None
        self._task: asyncio.Task[None] | None = None
        self.kept: deque[tuple[int, bytes]] = deque(maxlen=BUFFER_LIMIT_MESSAGES)
        self.lose = 0
        self.silent = False
        self.answer_limit = BUFFER_LIMIT_MESSAGES

    def start(self) -> None:
        """Bind both sockets, at first to any free ports. Raises zmq.ZMQError."""
        context = self._context = zmq.Context()
        live = self._live = context.socket(zmq.PUB)
        replay = self._replay = zmq.asyncio.Socket(context, zmq.ROUTER)
        ports = []
        for socket, port in zip((live, replay), self._ports, strict=True):
            socket.ipv6 = ":" in self._address[6:]
            socket.linger = 0
            socket.sndhwm = 100_000
            if port:
                socket.bind(f"{self._address}:{port}")
            ports.append(port or socket.bind_to_random_port(self._address))
        self._ports = ports[0], ports[1]
        self._task = asyncio.get_running_loop().create_task(self._answer(replay))

    async def stop(self) -> None:
        """Close the sockets; what was kept is gone, as with the process."""
        context, task, sockets = self._context, self._task, (self._live, self._replay)
        self._context = self._live = self._replay = self._task = None
        self._number = 0
        self.kept.clear()
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        for socket in sockets:
            if socket is not None:
                socket.close(linger=0)
        if context is not None:
            context.term()

    def publish(self, events: Sequence[Event]) -> None:
        """Publish one message with these events."""
        payload = _encode([time.time(), spelled(events, self._spelling), 0])
        number, self._number = self._number, self._number + 1
        self.kept.append((number, payload))
        if self.lose:
            self.lose -= 1
        elif self._live is not None and not self.silent:
            self._live.send_multipart([b"", number.to_bytes(8, "big"), payload], zmq.NOBLOCK)

    def source(self) -> dict[str, Any]:
        """As vLLM's /kv_event_sources describes it."""
        live, replay = self._ports
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{live}",
            "replay_endpoint": f"tcp://*:{replay}",
            "buffer_steps": BUFFER_LIMIT_MESSAGES,
            "hwm": 100_000,
            "max_queue_size": 100_000,
            "topic": "",
        }

    async def _answer(self, socket: zmq.asyncio.Socket) -> None:
        """Replay for whoever asks."""
        while True:
            who, *question = await socket.recv_multipart()
            if self.silent or not question:
                continue
            start = int.from_bytes(question[-1], "big")
            asked = [one for one in self.kept if one[0] >= start]
            for number, payload in asked[: self.answer_limit]:
                frames = [who, b"", b"", number.to_bytes(8, "big"), payload]
                await socket.send_multipart(frames)
            if len(asked) <= self.answer_limit:
                await socket.send_multipart([who, b"", b"", _END, b""])

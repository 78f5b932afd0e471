"""One publisher's sockets: the live stream, and questions about what was missed.

Invariants:
- What a message means is the account's word; here it is only carried.
- Each question has a socket of its own, so that no late answer is taken for another's.
- What a publisher kept from before comes all at once, up to hundreds of MB: few are asked for it
  at the same time (`beginnings`), and nothing is heard of the others yet.
- Sockets are closed when `run` ends, however it ends.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import zmq
import zmq.asyncio

from tokenlane.control.kv_events.account import PublisherAccount
from tokenlane.control.kv_events.publishers import EventEndpoint
from tokenlane.control.kv_events.sequence import Ask
from tokenlane.control.waits import set_within

RECEIVE_LIMIT_MESSAGES = 10_000
# An engine sends a whole replay at once, and drops what its socket has no room for: what is not
# read at once has to fit here. vLLM keeps 10,000 messages unless told otherwise.
REPLAY_LIMIT_MESSAGES = 100_000
# A replica that does not come to an end must not keep the others waiting.
BEGINNING_LIMIT_S = 10.0
# A million tokens are some 6 MB.
MESSAGE_LIMIT_BYTES = 8 * 1024 * 1024
_NUMBER_BYTES = 8
_END = b"\xff" * _NUMBER_BYTES


@dataclass(eq=False)
class Subscription:
    """`on_change`: called when the account has changed. beginnings: held until the publisher has
    answered for the first time, or for BEGINNING_LIMIT_S. check_interval_s: after so long without a
    message the publisher is asked whether there was one; answer_deadline_s: for its answers."""

    context: zmq.asyncio.Context
    endpoint: EventEndpoint
    account: PublisherAccount
    on_change: Callable[[], None]
    beginnings: asyncio.Semaphore
    _: KW_ONLY
    check_interval_s: float
    answer_deadline_s: float

    def __post_init__(self) -> None:
        self._question: Ask | None = None
        self._asked = asyncio.Event()

    async def run(self) -> None:
        """Receives until cancelled. Raises zmq.ZMQError if the address cannot be used."""
        with self._socket(zmq.SUB) as live:
            async with asyncio.TaskGroup() as group:
                async with self.beginnings:
                    self._connect(live)
                    group.create_task(self._listen(live))
                    self._ask(self.account.ask())
                    first = group.create_task(self._questions())
                    await asyncio.wait([first], timeout=BEGINNING_LIMIT_S)
                await first
                while True:
                    asked = await set_within(self._asked, self.check_interval_s)
                    if not asked and self.account.quiet():
                        self._ask(self.account.ask())
                    self._asked.clear()
                    await self._questions()

    def reset(self) -> None:
        """The publisher's process is gone: what is there then is asked for anew."""
        self.account.reset()
        self._question = None
        self._ask(self.account.ask())
        self.on_change()

    def _ask(self, question: Ask | None) -> None:
        if question is not None:
            self._question = question
            self._asked.set()

    def _connect(self, live: zmq.asyncio.Socket) -> None:
        live.rcvhwm = RECEIVE_LIMIT_MESSAGES
        live.subscribe(self.endpoint.topic.encode())
        if self.endpoint.bind:
            live.bind(self.endpoint.live)
        else:
            live.connect(self.endpoint.live)

    async def _listen(self, live: zmq.asyncio.Socket) -> None:
        while True:
            frames = await live.recv_multipart()
            if len(frames) >= 2 and len(frames[-2]) == _NUMBER_BYTES:
                number = int.from_bytes(frames[-2], "big")
                self._ask(self.account.live(number, frames[-1], time.time()))
                self.on_change()
            # A backlog is received without waiting: others want the loop too.
            await asyncio.sleep(0)

    async def _questions(self) -> None:
        """Asks what is to be asked, and what follows from the answers."""
        while self._question is not None:
            question, self._question = self._question, None
            assert self.endpoint.replay is not None  # the account would not ask
            await self._replay(self.endpoint.replay, question)
            self.on_change()

    async def _replay(self, address: str, question: Ask) -> None:
        number = question.number
        with self._socket(zmq.DEALER) as socket:
            socket.rcvhwm = REPLAY_LIMIT_MESSAGES
            socket.connect(address)
            await socket.send_multipart([b"", question.start.to_bytes(_NUMBER_BYTES, "big")])
            while True:
                try:
                    # No timeout around it all: a long replay is no silence.
                    async with asyncio.timeout(self.answer_deadline_s):
                        frames = await socket.recv_multipart()
                except TimeoutError:
                    frames = []
                if self._question is not None:
                    return  # there is another one: what this one brings is of no use any more
                if frames[-2:-1] == [_END]:
                    self._ask(self.account.ended(number))
                    return
                if len(frames) < 2 or len(frames[-2]) != _NUMBER_BYTES:
                    self._ask(self.account.failed(number))
                    return
                replayed = int.from_bytes(frames[-2], "big")
                self._ask(self.account.replayed(number, replayed, frames[-1]))
                await asyncio.sleep(0)

    def _socket(self, kind: int) -> zmq.asyncio.Socket:
        socket = self.context.socket(kind)
        socket.linger = 0
        socket.maxmsgsize = MESSAGE_LIMIT_BYTES
        socket.reconnect_ivl = 100
        socket.reconnect_ivl_max = 2000
        socket.ipv6 = "[" in self.endpoint.live
        return socket

    def __repr__(self) -> str:
        return f"<Subscription {self.endpoint.live} {self.account!r}>"

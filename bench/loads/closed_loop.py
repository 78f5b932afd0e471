"""A closed-loop load generator, a process of its own: so many clients, each with one request.

    python -m bench.loads.closed_loop < PLAN.msgpack > RESULT.msgpack

Invariants:
- A client sends its next request when it has its answer: the published loads of so many clients
  are such loads. Their rate is the server's, and so no measure of how it copes with one.
- What is under way at the end is cut off and not counted.
"""

import asyncio
import functools
import sys
import time
from collections.abc import Callable

import msgspec
import uvloop

from bench.loads import workload
from bench.tools.client import Answer, Connection


class Plan(msgspec.Struct, frozen=True):
    """A run.

    bodies: sent in turn, over and over. It ends `seconds_s` after every client had its first
    answer, but not before there were `rounds` answers a client since; `once` each body was sent
    and answered; and after `limit_s` in any case. keep: the answers' bytes are returned.
    """

    port: int
    path: str
    bodies: list[bytes]
    clients: int
    seconds_s: float
    rounds: int = 1
    limit_s: float = 60.0
    once: bool = False
    keep: bool = False


class Call(msgspec.Struct, array_like=True):
    """One request that was answered. Times in seconds from the start of the run.

    turn: how many its client had had before.
    """

    turn: int
    began_s: float
    done_s: float
    status: int
    whole: bool
    answer: bytes = b""

    @property
    def served(self) -> bool:
        """Whether it was answered whole with 200; a refusal is quick, and serves nobody."""
        return self.whole and self.status == 200


class Result(msgspec.Struct):
    """Answered requests in the order of their ends, and what the generator itself used."""

    calls: list[Call]
    wall_s: float
    cpu_s: float


class Clients:
    """The clients of a plan, and what they were answered."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.requests = [workload.request(plan.path, body) for body in plan.bodies]
        self.sent = 0
        self.calls: list[Call] = []
        self.enough = asyncio.Event()
        self.started_s = 0.0
        # Clients that had an answer, when the last of them had its first, and the calls until then.
        self.first, self.full_s, self.before = 0, 0.0, 0

    def next_request(self) -> bytes | None:
        """Return the next body as a request, None where each has been sent once."""
        if self.plan.once and self.sent == len(self.requests):
            return None
        self.sent += 1
        return self.requests[(self.sent - 1) % len(self.requests)]

    async def client(self) -> None:
        """Send one request after the other until there is none left."""
        answered: asyncio.Queue[Answer] = asyncio.Queue()

        def on_answer(_: Connection, answer: Answer) -> None:
            answered.put_nowait(answer)

        connection: Connection | None = None
        turn = 0
        try:
            while (request := self.next_request()) is not None:
                if connection is None or not connection.reusable:
                    connection = await self.connect(on_answer)
                connection.kept = bytearray() if self.plan.keep else None
                began_s = time.perf_counter()
                connection.send(request)
                answer = await answered.get()
                self.note(turn, began_s, answer, bytes(connection.kept or b""))
                turn += 1
        finally:
            if connection is not None:
                connection.close()

    async def connect(self, on_answer: Callable[[Connection, Answer], None]) -> Connection:
        """Return a new connection."""
        make = functools.partial(Connection, on_answer)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(make, "127.0.0.1", self.plan.port)
        return connection

    def note(self, turn: int, began_s: float, answer: Answer, kept: bytes) -> None:
        """Add an answer, and see whether it was the last that is needed."""
        began_s, done_s = began_s - self.started_s, answer.done_s - self.started_s
        self.calls.append(Call(turn, began_s, done_s, answer.status, answer.whole, kept))
        if turn == 0:
            self.first += 1
            self.full_s = done_s
            self.before = len(self.calls)
        enough = len(self.calls) - self.before >= self.plan.clients * self.plan.rounds
        full = self.first == self.plan.clients and not self.plan.once
        if full and enough and done_s - self.full_s >= self.plan.seconds_s:
            self.enough.set()

    async def run(self) -> Result:
        """Run the plan. Raise OSError where no client could connect."""
        cpu_s = time.process_time()
        self.started_s = time.perf_counter()
        everyone = asyncio.gather(*(self.client() for _ in range(self.plan.clients)))
        enough = asyncio.get_running_loop().create_task(self.enough.wait())
        await asyncio.wait(
            (everyone, enough),
            timeout=self.plan.limit_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        wall_s = time.perf_counter() - self.started_s
        cpu_s = time.process_time() - cpu_s
        for task in (everyone, enough):
            task.cancel()
        ended = await asyncio.gather(everyone, enough, return_exceptions=True)
        await asyncio.sleep(0)  # the closed connections are lost
        if isinstance(ended[0], OSError):
            raise ended[0]
        return Result(self.calls, wall_s, cpu_s)


def main() -> None:
    """Read the plan from stdin, write the result to stdout."""
    plan = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Plan)

    async def run() -> Result:
        return await Clients(plan).run()

    sys.stdout.buffer.write(msgspec.msgpack.encode(uvloop.run(run())))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

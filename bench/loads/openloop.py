"""An open-loop load generator, a process of its own: requests leave when they are due.

    python -m bench.loads.openloop < PLAN.json > RESULT.json

Invariants:
- A request leaves at its time whether or not earlier ones were answered; its latency counts from
  that time, so a stalled proxy cannot slow the load that shows its stall.
- A thread keeps the time (the loop's timers are a millisecond coarse), so `fired_s - due_s` is
  the generator's own lateness: where it is large, the generator was the limit, and says so.
  What comes after, a connection to open too, is the time of the one who answers.
"""

import asyncio
import functools
import sys
import threading
import time
from typing import Literal

import msgspec
import uvloop

from bench.loads import workload
from bench.tools.client import Answer, Connection


class Flow(msgspec.Struct, frozen=True):
    """Requests of one kind to one port.

    due_s: start of each, from the start of the run. body: kind of body (`none` is a GET; `long`
    are new as a whole; `turns` are next turns of long conversations; `given` are those of
    `bodies`, in turn). warm_connections: opened before the start. size: characters or bytes of a
    body.
    """

    name: str
    port: int
    path: str
    due_s: list[float]
    body: Literal["none", "small", "stream", "long", "turns", "given"]
    warm_connections: int = 1
    size: int = 0
    bodies: list[bytes] = []


class Plan(msgspec.Struct, frozen=True):
    """A run. linger_s: how long after the last request answers are waited for.

    nonce: makes the bodies of `long` flows, and the questions of `turns`, new in every run.
    """

    flows: list[Flow]
    linger_s: float = 5.0
    nonce: int = 0


class Call(msgspec.Struct):
    """One request. Times in seconds from the start of the run; 0 where nothing came. code: that
    of the error it was answered with."""

    due_s: float
    fired_s: float = 0.0
    first_byte_s: float = 0.0
    done_s: float = 0.0
    status: int = 0
    events: int = 0
    whole: bool = False
    code: str = ""

    @property
    def served(self) -> bool:
        """Whether it was answered whole with 200; a refusal is quick, and serves nobody."""
        return self.whole and self.status == 200


class Result(msgspec.Struct):
    """Calls by flow, and what the generator itself used. started_s: time.monotonic() at 0."""

    calls: dict[str, list[Call]]
    cpu_s: float
    wall_s: float
    started_s: float = 0.0


LONG_TEXTS = 8


class Said(msgspec.Struct, frozen=True):
    """Of an error in OpenAI's shape, its code; vLLM's is its status."""

    code: str | int | None = None


class Refusal(msgspec.Struct, frozen=True):
    """An error in OpenAI's shape."""

    error: Said = Said()


def error_code(body: bytes) -> str:
    """Return the code in an error's body; empty where there is none."""
    try:
        return str(msgspec.json.decode(body or b"{}", type=Refusal).error.code or "")
    except msgspec.MsgspecError:
        return ""


def requests_of(flow: Flow, nonce: int) -> list[bytes]:
    """The whole requests of a flow, built before the start."""
    if flow.body == "none":
        return [workload.request(flow.path, b"")]
    if flow.body == "given":
        bodies = flow.bodies
    elif flow.body == "long":
        texts = [workload.text(flow.size, seed) for seed in range(LONG_TEXTS)]
        bodies = [
            workload.chat([("user", f"{nonce}.{index} {texts[index % LONG_TEXTS]}")])
            for index in range(len(flow.due_s))
        ]
    elif flow.body == "turns":
        parts = workload.last_turns(flow.size)
        number = nonce % 10 ** (workload.NUMBER_DIGITS - 1)
        bodies = []
        for index in range(len(flow.due_s)):
            head, tail = parts[index % len(parts)]
            bodies.append(b"%b%0*d%b" % (head, workload.NUMBER_DIGITS, number + index, tail))
    else:
        stream = flow.body == "stream"
        bodies = [workload.sized(flow.size, seed, stream=stream) for seed in range(1000)]
    return [workload.request(flow.path, body) for body in bodies]


class Sender:
    """A flow under way: its idle connections and its calls."""

    def __init__(self, flow: Flow, nonce: int) -> None:
        self.flow = flow
        self.requests = requests_of(flow, nonce)
        self.idle: list[Connection] = []
        self.busy: dict[Connection, Call] = {}
        self.connecting: set[asyncio.Task[None]] = set()
        self.calls = [Call(due_s) for due_s in flow.due_s]
        self.started_s = 0.0

    async def connect(self) -> Connection:
        """A new connection."""
        loop = asyncio.get_running_loop()
        make = functools.partial(Connection, self.on_answer)
        _, connection = await loop.create_connection(make, "127.0.0.1", self.flow.port)
        return connection

    async def warm(self) -> None:
        """Opens the connections that the run will need."""
        for _ in range(self.flow.warm_connections):
            self.idle.append(await self.connect())

    def fire(self, index: int, group: asyncio.TaskGroup) -> None:
        """Sends the request on an idle connection, or on a new one when there is none."""
        self.calls[index].fired_s = time.perf_counter() - self.started_s
        while self.idle:
            connection = self.idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                self.send(connection, index)
                return
        task = group.create_task(self.fire_on_new(index))
        self.connecting.add(task)
        task.add_done_callback(self.connecting.discard)

    async def fire_on_new(self, index: int) -> None:
        """As fire, where a connection must be opened first."""
        try:
            self.send(await self.connect(), index)
        except OSError:
            self.calls[index].done_s = time.perf_counter() - self.started_s

    def send(self, connection: Connection, index: int) -> None:
        """Puts the request on the wire."""
        self.busy[connection] = self.calls[index]
        connection.send(self.requests[index % len(self.requests)])

    def on_answer(self, connection: Connection, answer: Answer) -> None:
        """Notes what came back and keeps the connection if it can be used again."""
        call = self.busy.pop(connection)
        call.status = answer.status
        call.events = answer.events
        call.whole = answer.whole
        call.code = error_code(answer.error)
        call.done_s = answer.done_s - self.started_s
        if answer.first_byte_s:
            call.first_byte_s = answer.first_byte_s - self.started_s
        if connection.reusable:
            self.idle.append(connection)


def keep_time(
    schedule: list[tuple[float, Sender, int]],
    started_s: float,
    loop: asyncio.AbstractEventLoop,
    group: asyncio.TaskGroup,
) -> None:
    """The clock thread: sleeps to each due time and wakes the loop."""
    for due_s, sender, index in schedule:
        left_s = started_s + due_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        loop.call_soon_threadsafe(sender.fire, index, group)


async def run(plan: Plan) -> Result:
    """Runs the plan; ends when all is answered, or `linger_s` after the last was due."""
    senders = [Sender(flow, plan.nonce) for flow in plan.flows]
    for sender in senders:
        await sender.warm()
    schedule = sorted(
        (
            (due_s, sender, index)
            for sender in senders
            for index, due_s in enumerate(sender.flow.due_s)
        ),
        key=lambda one: one[0],
    )
    loop = asyncio.get_running_loop()
    cpu_before_s = time.process_time()
    started_s = time.perf_counter() + 0.05
    for sender in senders:
        sender.started_s = started_s
    async with asyncio.TaskGroup() as group:
        clock = threading.Thread(target=keep_time, args=(schedule, started_s, loop, group))
        clock.start()
        end_s = started_s + schedule[-1][0] + plan.linger_s
        # Polled: an event per answer would cost the load.
        while time.perf_counter() < end_s and (  # noqa: ASYNC110
            clock.is_alive()
            or any(s.busy or s.connecting for s in senders)
            # The clock may have ended before the loop came to what it asked for.
            or any(not call.fired_s for s in senders for call in s.calls)
        ):
            await asyncio.sleep(0.02)
        clock.join()
        for sender in senders:
            for task in sender.connecting:
                task.cancel()
    wall_s = time.perf_counter() - started_s
    cpu_s = time.process_time() - cpu_before_s
    for sender in senders:
        for connection in [*sender.busy, *sender.idle]:
            connection.close()
    await asyncio.sleep(0)
    return Result({sender.flow.name: sender.calls for sender in senders}, cpu_s, wall_s, started_s)


def main() -> None:
    """Reads the plan from stdin, writes the result to stdout."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run(plan))))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

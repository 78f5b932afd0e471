"""The channel: whole messages or none, however the bytes come, and its end is noticed once."""

import asyncio
import socket
from dataclasses import dataclass, field

import msgspec
import pytest

from tests.control.dashboard.test_reasons import sample
from tokenlane.channel.ends import SupervisorEnd, WorkerEnd
from tokenlane.channel.frames import BACKLOG_LIMIT_BYTES
from tokenlane.channel.messages import (
    Beats,
    Drain,
    Failed,
    FleetUpdate,
    Hello,
    Learned,
    Message,
    RoutedSamples,
    Stalled,
    Suspect,
    Up,
    WorkerReady,
)
from tokenlane.config.settings import Settings, TokenSettings
from tokenlane.fleet_state import FleetState, ReplicaState
from tokenlane.telemetry.routing_sample import CandidateSample
from tokenlane.telemetry.stalls.stall import InHand, Stall

FLEET = FleetState(3, (ReplicaState("a:1", 0, "http://a:1", up=True, models=("m",)),))
SETTINGS = Settings(backends=("http://a:1",), tokens=TokenSettings(folders={"m": "/x"}))
SAMPLE = sample("prefix", CandidateSample(0, 64, 1, 0, 10.5))
STALL = Stall(
    worker=1,
    at_s=1e9,
    began_s=5.0,
    length_s=0.02,
    cause="gil",
    stack=("a.py:1 f",),
    in_hand=(InHand("id", "/v1/models", "read"),),
    in_hand_count=1,
)
HELLO = Hello(1, SETTINGS, 7, 8, FLEET, "127.0.0.1", 8080, None)


@dataclass
class Log:
    """What the callbacks were told, in order; `until` waits for a number of entries."""

    entries: list[object] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, *entry: object) -> None:
        self.entries.append(entry[0] if len(entry) == 1 else entry)
        self.more.set()

    async def until(self, count: int) -> list[object]:
        while len(self.entries) < count:
            self.more.clear()
            await self.more.wait()
        return self.entries


def worker_end(log: Log) -> WorkerEnd:
    return WorkerEnd(log.add, lambda: log.add("lost"))


def frame(message: Message) -> bytes:
    payload = msgspec.msgpack.encode(message)
    return len(payload).to_bytes(4, "little") + payload


async def test_both_directions() -> None:
    above, below = Log(), Log()
    ours, theirs = socket.socketpair()
    supervisor = SupervisorEnd(above.add, lambda: above.add("lost"))
    await supervisor.attach(ours)
    worker = worker_end(below)
    supervisor.send(HELLO)
    assert await worker.connect(theirs.detach()) == HELLO

    ready, failed = WorkerReady({"m": ("why",)}), Failed("no tokenizer")
    worker.send(ready)
    hints: list[Up] = [
        Learned([(2, b"12345678", "alice"), (3, b"abcdefgh", "")]),
        Suspect(0),
        RoutedSamples([SAMPLE]),
        Stalled(STALL),
        Beats(b"1234"),
    ]
    assert all(map(worker.offer, hints))
    worker.send(failed)
    assert await above.until(7) == [ready, *hints, failed]

    supervisor.send(FleetUpdate(FLEET))
    assert supervisor.offer(Learned([(1, b"abcdefgh", "bob")]))
    supervisor.send(Drain())
    told = [FleetUpdate(FLEET), Learned([(1, b"abcdefgh", "bob")]), Drain()]
    assert await below.until(3) == told

    worker.close()
    assert (await above.until(8))[7] == "lost"
    assert len(below.entries) == 3  # who hangs up has lost nothing
    supervisor.send(Drain())  # nobody there: nothing happens
    assert not supervisor.offer(Learned([(1, b"", "")]))


@pytest.mark.parametrize("size", [1, 3, 7, 100_000])
async def test_any_cut_of_the_bytes(size: int) -> None:
    below = Log()
    ours, theirs = socket.socketpair()
    worker = worker_end(below)
    stream = (
        frame(HELLO)
        + frame(Learned([(0, b"x" * 1000, "")]))
        + frame(FleetUpdate(FLEET))
        + frame(Drain())
    )
    with ours:
        ours.settimeout(0)
        waiting = asyncio.gather(worker.connect(theirs.detach()))
        loop = asyncio.get_running_loop()
        for at in range(0, len(stream), size):
            await loop.sock_sendall(ours, stream[at : at + size])
            await asyncio.sleep(0)
        await waiting
        assert await below.until(3) == [
            Learned([(0, b"x" * 1000, "")]),
            FleetUpdate(FLEET),
            Drain(),
        ]
    assert (await below.until(4))[3] == "lost"


async def test_an_unknown_message_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    below = Log()
    ours, theirs = socket.socketpair()
    worker = worker_end(below)
    unknown = msgspec.msgpack.encode({"type": "FromTheFuture"})
    ours.sendall(frame(HELLO) + len(unknown).to_bytes(4, "little") + unknown + frame(Drain()))
    await worker.connect(theirs.detach())
    assert await below.until(1) == [Drain()]
    assert "cannot be decoded" in caplog.text
    ours.close()
    await below.until(2)


async def test_a_message_that_cannot_be_taken_in_is_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    below = Log()

    def received(message: object) -> None:
        below.add(message)
        if isinstance(message, FleetUpdate):
            raise KeyError("unforeseen")

    ours, theirs = socket.socketpair()
    worker = WorkerEnd(received, lambda: below.add("lost"))
    with ours:
        ours.sendall(frame(HELLO) + frame(FleetUpdate(FLEET)) + frame(Drain()))
        await worker.connect(theirs.detach())
        assert await below.until(2) == [FleetUpdate(FLEET), Drain()]
        assert "KeyError: 'unforeseen'" in caplog.text
    assert (await below.until(3))[2] == "lost"


async def test_an_impossible_length_ends_the_channel() -> None:
    below = Log()
    ours, theirs = socket.socketpair()
    worker = worker_end(below)
    with ours:
        ours.sendall(frame(HELLO) + b"\xff\xff\xff\xff")
        await worker.connect(theirs.detach())
        assert await below.until(1) == ["lost"]


async def test_end_before_hello() -> None:
    below = Log()
    ours, theirs = socket.socketpair()
    ours.close()
    with pytest.raises(ConnectionError):
        await worker_end(below).connect(theirs.detach())
    assert below.entries == ["lost"]


async def test_hints_are_dropped_when_nobody_reads_and_control_is_not() -> None:
    ours, theirs = socket.socketpair()
    above = Log()
    supervisor = SupervisorEnd(above.add, lambda: above.add("lost"))
    await supervisor.attach(ours)
    blocks = bytes(64 * 1024)
    limit = BACKLOG_LIMIT_BYTES // len(blocks)
    taken = 0
    while supervisor.offer(Learned([(0, blocks, "")])):
        taken += 1
        assert taken < limit + 100
    supervisor.send(HELLO)
    below = Log()
    assert await worker_end(below).connect(theirs.detach()) == HELLO
    assert len(await below.until(taken)) == taken
    assert supervisor.offer(Learned([(0, blocks, "")]))
    supervisor.close()
    assert (await below.until(taken + 2))[-1] == "lost"
    assert not above.entries  # who hangs up has lost nothing


def test_tags_are_told_apart() -> None:
    message: Up = Learned([(1, b"", "")])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Up) == message

"""A lean fleet that only streams: each chat gets the same SSE events, evenly spaced, on schedule.

It stands where the simulated fleet would be the limit: the events are built once, one timer
serves all streams, and an event costs one write. The first event leaves at once, so the time to
the first token is the proxy's and the network's. Events keep to their schedule: a late one does
not delay those after it, and lateness is counted.
"""

import argparse
import asyncio
import functools
import os
from typing import cast

import httptools
import msgspec
import uvloop

from bench.tools.canned import METRICS, MODELS
from bench.tools.demo_model import MODEL

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
LATENESS_STEP_S = 0.0005
TICK_S = 0.001


def event(last: bool) -> bytes:
    """One chat completion chunk as vLLM writes it, in its HTTP chunk."""
    delta = '{"content":" token"}'
    reason = '"length"' if last else "null"
    data = (
        f'data: {{"id":"chatcmpl-00000000","object":"chat.completion.chunk",'
        f'"created":1700000000,"model":"{MODEL}","choices":[{{"index":0,"delta":{delta},'
        f'"logprobs":null,"finish_reason":{reason}}}]}}\n\n'
    ).encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def plain(kind: str, body: str, status: str = "200 OK") -> bytes:
    """A whole answer."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


class Stats(msgspec.Struct):
    """Events sent, and how late: lateness[i] counts those in the i-th half millisecond."""

    events: int = 0
    lateness: list[int] = msgspec.field(default_factory=lambda: [0] * 200)

    def late(self, seconds: float, count: int) -> None:
        """Counts events of one tick."""
        self.events += count
        self.lateness[min(int(max(0.0, seconds) / LATENESS_STEP_S), 199)] += count

    def quantile_s(self, share: float) -> float:
        """Upper edge of the step in which that share of the events lies."""
        left = share * self.events
        for step, count in enumerate(self.lateness):
            left -= count
            if left <= 0:
                return (step + 1) * LATENESS_STEP_S
        return len(self.lateness) * LATENESS_STEP_S


class Wheel:
    """One timer for all streams: a slot per tick, and a stream keeps its slot until its end."""

    def __init__(self, gap_s: float, stats: Stats) -> None:
        self.loop = asyncio.get_running_loop()
        self.stats = stats
        self.slots: list[set[Source]] = [set() for _ in range(max(1, round(gap_s / TICK_S)))]
        self.turn = 0
        self.started_s = self.loop.time()
        self.timer = self.loop.call_at(self.started_s + TICK_S, self.tick)

    def join(self, source: "Source") -> None:
        """A stream whose first event has just left: the next one is a turn of the wheel away."""
        self.slots[self.turn % len(self.slots)].add(source)

    def leave(self, source: "Source") -> None:
        """A stream whose client has gone."""
        for slot in self.slots:
            slot.discard(source)

    def tick(self) -> None:
        """Writes what is due now; ticks that were missed are made up for."""
        now_s = self.loop.time()
        while (due_s := self.started_s + (self.turn + 1) * TICK_S) <= now_s:
            self.turn += 1
            slot = self.slots[self.turn % len(self.slots)]
            if slot:
                self.stats.late(now_s - due_s, len(slot))
                slot.difference_update([source for source in slot if not source.step()])
        self.timer = self.loop.call_at(due_s, self.tick)


class Source(asyncio.Protocol):
    """One connection: answers probes at once and POSTs with a stream."""

    def __init__(self, events: list[bytes], wheel: Wheel, stats: Stats) -> None:
        self.events = events
        self.wheel = wheel
        self.stats = stats
        self.next = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.fd: int = transport.get_extra_info("socket").fileno()
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        """A request begins (httptools callback)."""
        self.url = b""

    def on_url(self, url: bytes) -> None:
        """A piece of the target (httptools callback)."""
        self.url += url

    def on_message_complete(self) -> None:
        """The request is whole (httptools callback)."""
        if self.url == b"/v1/chat/completions":
            self.transport.write(STREAM_HEAD + self.events[0])
            self.next = 1
            self.wheel.join(self)
        else:
            self.transport.write(self.small_answer())

    def small_answer(self) -> bytes:
        """What probes and the bench ask for."""
        if self.url == b"/v1/models":
            return plain("application/json", MODELS)
        if self.url == b"/metrics":
            return plain("text/plain", METRICS)
        if self.url == b"/bench/reset":
            self.stats.events = 0
            self.stats.lateness = [0] * 200
        if self.url == b"/bench/stats":
            late_ms = {str(at): self.stats.quantile_s(at) * 1e3 for at in (0.5, 0.99)}
            return plain("application/json", msgspec.json.encode(late_ms).decode())
        if self.url in (b"/health", b"/bench/reset"):
            return plain("text/plain", "")
        # A server that cannot say its ids: whoever asks for them must not get a stream.
        return plain("text/plain", "", status="404 Not Found")

    def step(self) -> bool:
        """Writes the next event; whether there are more."""
        piece = self.events[self.next]
        self.next += 1
        more = self.next < len(self.events)
        if not more:
            piece += END
        # Straight to the socket: half the price of the transport, which takes what is left over.
        sent = 0
        if self.transport.get_write_buffer_size() == 0:
            try:
                sent = os.write(self.fd, piece)
            except BlockingIOError:
                sent = 0
            except OSError:
                return False
        if sent < len(piece):
            self.transport.write(piece[sent:])
        return more

    def connection_lost(self, error: Exception | None) -> None:
        self.wheel.leave(self)


async def serve(ports: list[int], events: int, gap_s: float) -> None:
    """Serves on the loopback ports until cancelled."""
    stats = Stats()
    pieces = [event(index == events - 1) for index in range(events)]
    wheel = Wheel(gap_s, stats)
    make = functools.partial(Source, pieces, wheel, stats)
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(make, "127.0.0.1", port, backlog=4096) for port in ports]
    try:
        await asyncio.Event().wait()
    finally:
        wheel.timer.cancel()
        for server in servers:
            server.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tools.stream_source", description=__doc__
    )
    parser.add_argument("--port", type=int, action="append", required=True)
    parser.add_argument("--events", type=int, default=128)
    parser.add_argument("--gap-ms", type=float, default=10.0)
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.events, options.gap_ms / 1e3))


if __name__ == "__main__":
    main()

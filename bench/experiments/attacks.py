"""`/health` on the data port beside attacks: what others wait while one peer does its worst.

    python -m bench attacks [--smoke | --full] [--json FILE] [--png DIR]

One attack after the other, each by as many clients as it says, again and again for the length of a
run, and first none. Beside it `/health` at 100/s, open loop, on connections of its own. The gateway
with one worker has one core; the clients, the replica and the load generator share the other.
"""

import contextlib
import itertools
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from bench.loads import workload
from bench.loads.generator import evenly, generate, latency, limit_remark
from bench.loads.openloop import Flow, Plan
from bench.tools import machine
from bench.tools.canned import COMPLETION, METRICS, MODELS
from bench.tools.command_line import Options, main
from bench.tools.finding import Finding, Table, bars
from bench.tools.processes import pause, say, two_cores
from bench.tools.statistics import Cell
from bench.tools.systems import Proxy, gateway, wait_known

CHAT = "/v1/chat/completions"
CHUNKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MB = 1_000_000
SILENCE_S = 10.0
RATE_PER_S = 100.0


class Attack(msgspec.Struct, frozen=True):
    """request: the next one. idle: it says nothing more, and waits for the end of the run."""

    name: str
    clients: int
    request: Callable[[], bytes]
    idle: bool = False


def posted(body: bytes) -> bytes:
    """A whole chat request."""
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def chat(text: bytes, more: bytes = b"") -> bytes:
    """The body of a chat."""
    return b'{"model":"demo","messages":[{"role":"user","content":"%b"}]%b}' % (text, more)


def attacks() -> Iterator[Attack]:
    """All of them. Bodies are made when their turn comes: they are large."""
    numbers = itertools.count()
    many = b',{"role":"user","content":"a"}' * 100_000
    for name, data in (
        ("one-byte chunks", CHUNKED + b"1\r\nx\r\n" * (4 * MB // 6)),
        ("chunk extensions", CHUNKED + (b"1;" + b"e" * 1000 + b"\r\nx\r\n") * 4000),
        ("30 MB of spaces", posted(b" " * 30 * MB)),
        ("JSON of 15 M scalars", posted(b'{"messages":[' + b"0," * 15 * MB + b"0]}")),
        ("100k messages", posted(chat(b"a").replace(b"}]", b"}" + many + b"]"))),
        ("one-byte chunks of a replica", posted(chat(b"a", b',"stream":true'))),
    ):
        yield Attack(name, 4, partial(bytes, data))
    salt = b"s" * 8 * MB
    yield Attack(
        "salts of 8 MB",
        4,
        lambda: posted(chat(b"a", b',"cache_salt":"%d%b"' % (next(numbers), salt))),
    )
    text = workload.text(31 * MB, 0).encode()
    yield Attack("24 bodies of 31 MB", 24, lambda: posted(chat(b"%d " % next(numbers) + text)))
    yield Attack("invalid UTF-8", 8, lambda: posted(chat(b"\xff" * 100)))
    yield Attack("800 idle connections", 800, lambda: b"", idle=True)


class _Replica(socketserver.StreamRequestHandler):
    """Answers as a vLLM server does; streams in chunks of one byte."""

    def handle(self) -> None:
        """One request."""
        with contextlib.suppress(OSError, ValueError):
            path = self.rfile.readline().split(b" ")[1]
            length = 0
            while line := self.rfile.readline().strip():
                name, _, value = line.lower().partition(b":")
                length = int(value) if name == b"content-length" else length
            body = self.rfile.read(length)
            if b'"stream":true' in body[-20:]:
                self.wfile.write(STREAM + b"1\r\nx\r\n" * (MB // 6) + b"0\r\n\r\n")
                return
            page = {b"/v1/models": MODELS, b"/metrics": METRICS, b"/health": ""}
            said = page.get(path, COMPLETION).encode()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.wfile.write(head + b"content-length: %d\r\n\r\n" % len(said) + said)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1024


@contextlib.contextmanager
def replica() -> Iterator[str]:
    """Its URL."""
    with _Server(("127.0.0.1", 0), _Replica) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@contextlib.contextmanager
def under(attack: Attack, port: int) -> Iterator[list[int]]:
    """The attack, in threads. Yields how many requests came to an end, one number a client."""
    over = threading.Event()
    ended = [0] * attack.clients

    def client(number: int) -> None:
        while not over.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), SILENCE_S) as sock,
            ):
                if attack.idle:
                    over.wait()
                    return
                with contextlib.suppress(ConnectionError):
                    sock.sendall(attack.request())
                while sock.recv(1 << 16) and not over.is_set():
                    pass
                ended[number] += 1

    threads = [threading.Thread(target=client, args=(one,)) for one in range(attack.clients)]
    for thread in threads:
        thread.start()
    try:
        yield ended
    finally:
        over.set()
        for thread in threads:
            thread.join()


def measure(
    ours: Proxy, attack: Attack, seconds_s: float, core: int
) -> tuple[list[Cell], list[str]]:
    """A row: the attack and what `/health` took beside it."""
    due_s = evenly(RATE_PER_S, seconds_s, 1)
    plan = Plan([Flow("health", ours.port, "/health", due_s, "none", 32)])
    before_s = ours.process.cpu_s()
    with under(attack, ours.port) as ended:
        result = generate(plan, core)
        share = (ours.process.cpu_s() - before_s) / result.wall_s
    seen = latency(result.calls["health"], result.wall_s)
    remark = limit_remark(attack.name, result, ["health"])
    row: list[Cell] = [
        attack.name, attack.clients, sum(ended), seen.p50_ms, seen.p99_ms, seen.max_ms,
        seen.failed, seen.unanswered, share,
    ]  # fmt: skip
    return row, [remark] if remark else []


HEADER = [
    "attack", "clients", "requests ended", "p50 ms", "p99 ms", "max ms", "not 200", "unanswered",
    "of its core",
]  # fmt: skip


def experiment(options: Options) -> Finding:
    """All attacks at the scale asked for."""
    core, load_core = two_cores()
    seconds_s = options.pick(2.0, 10.0, 30.0)
    rows: list[list[Cell]] = []
    remarks: list[str] = []
    quiet = Attack("none", 0, lambda: b"")
    with replica() as url, gateway([url], core, plain=options.plain) as ours:
        assert ours.admin_port is not None
        wait_known(ours.admin_port)
        for attack in itertools.chain([quiet], attacks()):
            say(f"attacks: {attack.name}")
            row, said = measure(ours, attack, seconds_s, load_core)
            rows.append(row)
            remarks += said
            pause(0.5)
    p99_ms = {str(row[0]): float(row[4]) for row in rows if isinstance(row[4], float)}
    return Finding(
        name="attacks",
        title="what `/health` takes beside each attack",
        machine=machine.facts(),
        settings={"seconds": seconds_s, "rate_per_s": RATE_PER_S},
        tables=[Table("", HEADER, rows)],
        plots=[bars("/health beside attacks", "p99, ms", dict(p99_ms), log="y")],
        remarks=remarks,
        numbers={f"{name} p99 ms": value for name, value in p99_ms.items()},
    )


if __name__ == "__main__":
    main(experiment, __doc__, "attacks")

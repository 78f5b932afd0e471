"""Closed loops: what is counted of them, and one against a real server."""

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest

from bench.loads import clients
from bench.loads.closed_loop import Call, Clients, Plan, Result

CORES = {"front end": 1.0}


def call(turn: int, began_s: float, done_s: float, status: int = 200) -> Call:
    return Call(turn, began_s, done_s, status, whole=True)


def test_first_answers_are_not_counted() -> None:
    calls = [call(0, 0, 1), call(0, 0, 2), call(1, 1, 3), call(1, 2, 4), call(2, 3, 4.5)]
    made = clients.served(Result(calls, wall_s=5.0, cpu_s=0.5), CORES)
    assert len(made.settled) == 3  # each ended after the second client's first answer
    assert made.per_s == pytest.approx(3 / 2.5)
    assert made.p50_ms == pytest.approx(2_000)
    assert made.cores == {"front end": 1.0, "load": 0.1}
    assert made.failed == 0


def test_one_answer_a_client_says_no_rate() -> None:
    made = clients.served(Result([call(0, 0, 1)], wall_s=1.0, cpu_s=0.0), {})
    assert (made.per_s, made.p50_ms) == (None, None)


def test_refusals_and_halves_are_failures_and_no_rate() -> None:
    half = Call(1, 1, 1.1, 200, whole=False)
    calls = [call(0, 0, 1), call(1, 1, 3), call(1, 1, 1.001, 503), half, call(2, 1, 5)]
    made = clients.served(Result(calls, wall_s=5.0, cpu_s=0.5), {})
    assert made.per_s == pytest.approx(2 / 4)
    assert made.p50_ms == pytest.approx(2_000)
    assert made.p99_ms == pytest.approx(4_000)
    assert made.failed == 2
    assert [one.done_s for one in made.answered] == [1, 3, 5]


@pytest.mark.parametrize(
    ("failed", "per_s", "kept"),
    [((0, 0), (10.0, 12.0), 1), ((0, 0), (12.0, 10.0), 0), ((0, 9), (10.0, 99.0), 0),
     ((2, 1), (10.0, 9.0), 1), ((0, 0), (None, 9.0), 1), ((0, 0), (9.0, None), 0)],
)  # fmt: skip
def test_the_better_run_is_the_one_with_fewer_failures_then_the_quicker_one(
    failed: tuple[int, int], per_s: tuple[float | None, float | None], kept: int
) -> None:
    before, now = (
        clients.Served(per_s[n], 1.0, 1.0, failed[n], {}, calls=[], settled=[]) for n in (0, 1)
    )
    assert clients.better(before, now) is (before, now)[kept]
    assert clients.better(None, now) is now


class Echo(BaseHTTPRequestHandler):
    """Answers each body with itself."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


class Server(ThreadingHTTPServer):
    """A server that expects clients to cut connections."""

    def handle_error(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def port() -> Iterator[int]:
    with Server(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_each_body_once(port: int) -> None:
    bodies = [b"%d" % n for n in range(10)]
    plan = Plan(port, "/", bodies, clients=3, seconds_s=0.0, once=True, keep=True)
    made = asyncio.run(Clients(plan).run())
    assert sorted(int(one.answer) for one in made.calls) == list(range(10))
    assert all(one.whole and one.status == 200 for one in made.calls)


def test_so_many_rounds(port: int) -> None:
    plan = Plan(port, "/", [b"1"], clients=2, seconds_s=0.0, rounds=3)
    made = asyncio.run(Clients(plan).run())
    assert 8 <= len(made.calls) <= 11


def test_nobody_there_is_an_error() -> None:
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(Clients(Plan(1, "/", [b"1"], clients=2, seconds_s=0.0)).run())


@pytest.mark.parametrize(
    ("rounds", "limit_s", "least", "measured"),
    [(2, 10.0, 0, "abcabc"), (2, 4.5, 0, "abca"), (1, 10.0, 0, "abc"), (2, 2.5, 0, "ab"),
     (2, 0.0, 0, ""), (2, 0.0, 3, "abc"), (2, 1.5, 3, "abca"), (2, 9.0, 3, "abcabc")],
)  # fmt: skip
def test_what_there_is_no_time_for_is_not_measured(
    rounds: int, limit_s: float, least: int, measured: str
) -> None:
    a_second_each = count(100.0).__next__
    found = clients.in_time("abc", rounds, limit_s, least=least, now_s=a_second_each)
    assert "".join(found) == measured

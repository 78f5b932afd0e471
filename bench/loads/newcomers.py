"""An open-loop generator of clients that open a connection for each request, a process of its own.

    python -m bench.loads.newcomers < PLAN.json > RESULT.json

Invariants:
- Clients come when they are due, whether or not earlier ones were answered; times count from then.
- Plain system calls and epoll: several thousand clients a second from one core, replicas beside it.
"""

import contextlib
import errno
import itertools
import resource
import select
import socket
import sys
import time

import msgspec

from bench.loads import workload

# So many come in one turn at most: answers are taken between them.
_TURN_COUNT = 32
_IN_PROGRESS = (0, errno.EINPROGRESS)


class Plan(msgspec.Struct, frozen=True):
    """When clients come, in seconds from the start, and what each asks. health_s: when others ask
    for /health. closed_count: so many clients instead, each coming again once it was answered, for
    `seconds`. patience_s: who is not answered in that time leaves. parts: of the body, around a
    number that no two requests share, from `first` on."""

    port: int
    parts: tuple[bytes, bytes]
    first: int = 0
    due_s: list[float] = []
    health_s: list[float] = []
    closed_count: int = 0
    seconds: float = 0.0
    patience_s: float = 5.0


class Visit(msgspec.Struct, array_like=True):
    """One client. Times in seconds from the start of the run. done_s: 0 while nothing came.
    status: 0 where the connection ended without a whole answer, or has not ended."""

    due_s: float
    came_s: float = 0.0
    done_s: float = 0.0
    status: int = 0
    health: bool = False


class _Client:
    """A visit under way."""

    __slots__ = ("received", "request", "sent", "sock", "visit")

    def __init__(self, visit: Visit, request: bytes) -> None:
        self.visit = visit
        self.request = request
        self.sent = False
        self.received = b""
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    def whole(self) -> bool:
        """Whether what was received is an answer of the length it names."""
        head, end, body = self.received.partition(b"\r\n\r\n")
        if not end:
            return False
        named = head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0]
        return named.isdigit() and len(body) >= int(named)


class Crowd:
    """All clients of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._epoll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._numbers = itertools.count(plan.first)
        self._health = b"GET /health HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"
        self._left: list[_Client] = []
        self._start_s = 0.0
        self.visits: list[Visit] = []

    def run(self) -> list[Visit]:
        """Let all come and be answered. Return the visits."""
        plan = self._plan
        coming = sorted([(at, False) for at in plan.due_s] + [(at, True) for at in plan.health_s])
        coming.reverse()
        last_s = max(coming[0][0] if coming else 0.0, plan.seconds)
        self._start_s = time.perf_counter()
        for _ in range(plan.closed_count):
            self._come(Visit(0.0))
        while (now_s := self._now_s()) < last_s + plan.patience_s:
            for _ in range(_TURN_COUNT):
                if not coming or coming[-1][0] > now_s:
                    break
                due_s, health = coming.pop()
                self._come(Visit(due_s, health=health))
            if not coming and not self._clients and now_s >= last_s:
                break
            self._leave(now_s - plan.patience_s)
            wait_s = coming[-1][0] - self._now_s() if coming else 0.05
            for descriptor, _ in self._epoll.poll(max(wait_s, 0.0)):
                self._ready(self._clients[descriptor])
        return self.visits

    def _now_s(self) -> float:
        return time.perf_counter() - self._start_s

    def _request(self) -> bytes:
        before, after = self._plan.parts
        body = b"%b%0*d%b" % (before, workload.NUMBER_DIGITS, next(self._numbers), after)
        request = workload.request("/v1/chat/completions", body)
        return request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)

    def _come(self, visit: Visit) -> None:
        self.visits.append(visit)
        visit.came_s = self._now_s()
        client = _Client(visit, self._health if visit.health else self._request())
        descriptor = client.sock.fileno()
        self._clients[descriptor] = client
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        if client.sock.connect_ex(("127.0.0.1", self._plan.port)) not in _IN_PROGRESS:
            self._over(client, 0)

    def _leave(self, since_s: float) -> None:
        """Those who came before that have waited long enough."""
        for client in self._clients.values():  # in the order in which they came
            if client.visit.came_s >= since_s:
                break
            self._left.append(client)
        while self._left:
            client = self._left.pop()
            del self._clients[client.sock.fileno()]
            client.sock.close()

    def _ready(self, client: _Client) -> None:
        try:
            if not client.sent:
                client.sock.send(client.request)
                client.sent = True
            while data := client.sock.recv(65536):
                client.received += data
        except BlockingIOError:
            if not client.whole():
                return
        except OSError:
            pass
        self._over(client, int(client.received[9:12]) if client.whole() else 0)

    def _over(self, client: _Client, status: int) -> None:
        visit = client.visit
        visit.status, visit.done_s = status, self._now_s()
        del self._clients[client.sock.fileno()]
        with contextlib.suppress(OSError):
            client.sock.close()
        if self._plan.closed_count and visit.done_s < self._plan.seconds:
            self._come(Visit(visit.done_s))


if __name__ == "__main__":
    _, _limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_limit, _limit))
    made = Crowd(msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)).run()
    sys.stdout.buffer.write(msgspec.json.encode(made))

"""The two ends of the gateway's wires: replicas made of raw bytes, a client that hides nothing.

Invariants:
- Everything is a real socket, written with plain system calls: what a test sends is on the wire
  when `send` returns, and a reset cannot overtake it.
- Answers are read by h11, which shares no code with the gateway.
- What goes wrong in a replica's script fails the test at the end of the replica's context.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import h11

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
LIMIT_S = 20.0
_RESET = struct.pack("ii", 1, 0)


async def until(condition: Callable[[], object]) -> None:
    """Returns when other callbacks of this loop have brought something about."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - it spans objects that know no event
            await asyncio.sleep(0.001)


def json_bytes(value: Any) -> bytes:
    """As clients send it."""
    return json.dumps(value, separators=(",", ":")).encode()


def chat(content: str = "hello", **fields: Any) -> bytes:
    """The body of a small chat."""
    messages = [{"role": "user", "content": content}]
    return json_bytes({"model": "demo", "messages": messages, **fields})


def post(path: str, body: bytes, headers: str = "") -> bytes:
    """A whole request."""
    head = f"POST {path} HTTP/1.1\r\nhost: gateway\r\n{headers}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def get(path: str, headers: str = "") -> bytes:
    """A whole request without a body."""
    return f"GET {path} HTTP/1.1\r\nhost: gateway\r\n{headers}\r\n".encode()


class Wire:
    """One end of a connection, whoever opened it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.loop = asyncio.get_running_loop()
        self.unread = b""

    async def send(self, data: bytes, piece_bytes: int = 0) -> None:
        """All of it, or in pieces, each read by the other side before the next is sent."""
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not piece_bytes:
            await self.loop.sock_sendall(self.sock, data)
            return
        for at in range(0, len(data), piece_bytes):
            await self.loop.sock_sendall(self.sock, data[at : at + piece_bytes])
            await asyncio.sleep(0)

    async def more(self) -> bytes:
        """What arrives next; b"" at the end. Raises ConnectionError after a reset."""
        async with asyncio.timeout(LIMIT_S):
            return await self.loop.sock_recv(self.sock, 65536)

    async def through(self, mark: bytes) -> bytes:
        """Everything up to and with `mark`; raises EOFError if the end comes first."""
        while mark not in self.unread:
            data = await self.more()
            if not data:
                raise EOFError(self.unread)
            self.unread += data
        end = self.unread.index(mark) + len(mark)
        taken, self.unread = self.unread[:end], self.unread[end:]
        return taken

    async def exactly(self, size: int) -> bytes:
        """So many bytes; raises EOFError if the end comes first."""
        while len(self.unread) < size:
            data = await self.more()
            if not data:
                raise EOFError(self.unread)
            self.unread += data
        taken, self.unread = self.unread[:size], self.unread[size:]
        return taken

    async def rest(self) -> bytes:
        """Everything until the other side ends, in whatever way."""
        with contextlib.suppress(ConnectionError):
            while data := await self.more():
                self.unread += data
        taken, self.unread = self.unread, b""
        return taken

    async def gone(self) -> None:
        """Returns when the other side ended the connection."""
        await self.rest()

    def close(self) -> None:
        """FIN."""
        self.sock.close()

    def reset(self) -> None:
        """RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.sock.close()


@dataclass
class Answer:
    """An answer as the client has it. whole: it ended as its framing promised."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    whole: bool = False
    version: str = "1.1"

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error in OpenAI's shape; fails the test if it has another one."""
        assert set(self.json) == {"error"}
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert isinstance(error["type"], str)
        return error

    @property
    def refusal(self) -> dict[str, Any]:
        """The error in Anthropic's shape; fails the test if it has another one."""
        assert set(self.json) == {"type", "error", "request_id"}
        assert self.json["type"] == "error"
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"type", "message"}
        assert self.json["request_id"] == self.headers["request-id"]
        assert self.headers["request-id"] == self.headers["x-request-id"]
        return error

    @property
    def data(self) -> list[bytes]:
        """What the whole events of a stream carry."""
        events = self.body.split(b"\n\n")[:-1]
        return [event[6:] for event in events if event.startswith(b"data: ")]


class Client(Wire):
    """A client's connection."""

    @classmethod
    async def connect(cls, port: int, *, receive_bytes: int = 0, host: str = "127.0.0.1") -> Self:
        """receive_bytes: a small buffer makes a slow reader."""
        sock = socket.socket()
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client = cls(sock)
        try:
            await client.loop.sock_connect(sock, (host, port))
        except OSError:
            sock.close()
            raise
        return client

    async def answer(self, method: str = "POST", version: str = "1.1") -> Answer:
        """The next answer to a `method` request, up to its end or its break."""
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 24)
        headers = [("host", "x")] + ([("content-length", "0")] if method == "POST" else [])
        parser.send(h11.Request(method=method, target="/", headers=headers))
        parser.send(h11.EndOfMessage())
        answer = Answer(0, {})
        ended = False
        while True:
            if self.unread:
                parser.receive_data(self.unread)
                self.unread = b""
            try:
                event = parser.next_event()
            except h11.RemoteProtocolError:
                return answer
            if event is h11.NEED_DATA:
                if ended:
                    return answer
                try:
                    self.unread = await self.more()
                except ConnectionError:
                    return answer
                if not self.unread:
                    ended = True
                    parser.receive_data(b"")
            elif isinstance(event, h11.Response):
                answer.status = event.status_code
                answer.version = event.http_version.decode()
                answer.headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                answer.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                answer.whole = True
                self.unread = parser.trailing_data[0]
                return answer
            elif isinstance(event, h11.ConnectionClosed):
                return answer

    async def ask(self, request: bytes, method: str = "POST") -> Answer:
        """A request and its answer."""
        await self.send(request)
        return await self.answer(method)


@dataclass
class Asked:
    """A request as a replica got it."""

    line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def values(self, name: bytes) -> list[bytes]:
        return [value for given, value in self.headers if given == name]


class Peer(Wire):
    """A connection as a replica sees it."""

    def __init__(self, sock: socket.socket, upstream: "Upstream") -> None:
        super().__init__(sock)
        self.upstream = upstream

    async def asked(self) -> Asked:
        """The next request; EOFError when there is none."""
        head = (await self.through(b"\r\n\r\n"))[:-4].split(b"\r\n")
        pairs = (line.partition(b": ") for line in head[1:])
        headers = [(name, value) for name, _, value in pairs]
        sizes = [int(value) for name, value in headers if name == b"content-length"]
        asked = Asked(head[0], headers, await self.exactly(sum(sizes)))
        self.upstream.asked.append(asked)
        return asked


Script = Callable[[Peer], Awaitable[None]]


def answering(*answers: bytes) -> Script:
    """Answers each request of a connection with the next of these, the last one again and again."""

    async def script(peer: Peer) -> None:
        left = list(answers)
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                await peer.asked()
                await peer.send(left.pop(0) if len(left) > 1 else left[0])

    return script


def ok(body: bytes = b"{}", headers: str = "") -> bytes:
    """A whole JSON answer."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{headers}"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def chunk(payload: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
ABORTED = b'data: {"choices":[{"delta":{"content":""},"finish_reason":"abort"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
EVENTS = (ROLE, TOKEN, TOKEN, LAST, USAGE, DONE)


def stream(*events: bytes) -> bytes:
    """A whole streamed answer, one chunk per event."""
    return STREAM_HEAD + b"".join(map(chunk, events or EVENTS)) + chunk(b"")


class Upstream:
    """A replica made of raw bytes. script: what it does with each connection; it may return early,
    and may leave the connection open. peers: the connections so far; asked: all requests;
    scripts: those that still run."""

    def __init__(self, script: Script, host: str = "127.0.0.1") -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.peers: list[Peer] = []
        self.errors: list[BaseException] = []
        self.scripts: set[asyncio.Task[None]] = set()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((host, 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://{host}:{self.port}"

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                peer = Peer(self._listener.accept()[0], self)
                self.peers.append(peer)
                task = asyncio.get_running_loop().create_task(self._run(peer))
                self.scripts.add(task)
                task.add_done_callback(self.scripts.discard)

    async def _run(self, peer: Peer) -> None:
        try:
            await self.script(peer)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - handed to the test at its end
            self.errors.append(error)

    async def __aenter__(self) -> Self:
        self._listener.listen(1024)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        tasks = list(self.scripts)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self.peers:
            peer.close()
        self._listener.close()
        if error is None and self.errors:
            raise self.errors[0]

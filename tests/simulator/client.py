"""A raw HTTP/1.1 client: what is on the wire, nothing hidden."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
LIMIT_S = 10.0


def chat(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    """The body of a small chat."""
    return {"model": "demo", "messages": [{"role": "user", "content": content}], **fields}


@dataclass
class Answer:
    """Status, headers by lower-case name, payload without chunk framing; whole: it ended as its
    framing promised."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool
    chunks: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Decoded data of the complete events; "[DONE]" as text."""
        data = [part[6:] for part in self.body.decode().split("\n\n") if part.startswith("data: ")]
        return [part if part == "[DONE]" else json.loads(part) for part in data]


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, url: str) -> "Client":
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=2**24))

    def send(self, path: str, body: Any = None, *, method: str = "POST", headers: str = "") -> None:
        payload = body if isinstance(body, bytes) else b"" if body is None else _dumps(body)
        if "content-type" not in headers:
            headers += "content-type: application/json\r\n"
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(payload)}\r\n"
        self.writer.write(head.encode() + b"\r\n" + payload)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.partition(": ") for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, _, value in pairs}

    async def answer(self) -> Answer:
        async with asyncio.timeout(LIMIT_S):
            status, headers = await self.head()
            if headers.get("transfer-encoding") == "chunked":
                return await self._chunked(status, headers)
            length = int(headers["content-length"])
            try:
                body = await self.reader.readexactly(length)
            except asyncio.IncompleteReadError as error:
                return Answer(status, headers, error.partial, False, 0)
            return Answer(status, headers, body, True, 0)

    async def event(self) -> bytes:
        """The next chunk's payload; b"" for the last chunk."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def _chunked(self, status: int, headers: dict[str, str]) -> Answer:
        body, chunks = b"", 0
        try:
            while chunk := await self.event():
                body += chunk
                chunks += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            return Answer(status, headers, body, False, chunks)
        return Answer(status, headers, body, True, chunks)

    async def eof(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    def reset(self) -> None:
        self.writer.transport.abort()


async def ask(
    url: str, path: str, body: Any = None, *, method: str = "POST", headers: str = ""
) -> Answer:
    """One request on a connection of its own."""
    client = await Client.connect(url)
    try:
        client.send(path, body, method=method, headers=headers)
        return await client.answer()
    finally:
        await client.close()


async def until(condition: Callable[[], bool]) -> None:
    """Returns when other callbacks of this loop have brought something about."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110  the condition spans several objects
            await asyncio.sleep(0)


def _dumps(body: Any) -> bytes:
    return json.dumps(body).encode()

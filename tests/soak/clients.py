"""Clients of a soak, well behaved and not, each asking again and again until told to stop.

Invariants:
- Every request whose id the gateway can read is in `Crowd.asked` from before its first byte.
- A connection is not used again after anything but a whole answer that keeps it open.
"""

import asyncio
import contextlib
import random
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from tests.raw import CHAT, TEXT, Answer, Client, chat, json_bytes, post
from tests.soak.audit import Asked

Kind = Callable[[], Awaitable[None]]

_TOKEN = re.compile(rb'"(?:content|text)":"[^"]')
_IDS = re.compile(rb"soak-\d+")
_LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopabcdef")
# Texts of so many parts that are dear to tokenize, and their fewest and most.
_HOSTILE: tuple[tuple[Callable[[random.Random, int], str], int, int], ...] = (
    (lambda _draw, count: "a" * count, 10_000, 500_000),
    (lambda draw, count: "".join(draw.choices("abcdefghij", k=count)), 50_000, 50_000),
    (lambda _draw, count: "é̂̃" * count, 1_000, 50_000),
    (lambda _draw, count: "🧵" * count, 1_000, 20_000),
)
_MALFORMED = (
    b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
)


def outcome(answer: Answer, name: str, *, streamed: bool) -> str:
    """How an answer looks to the client that waited for it (see Asked)."""
    if not answer.status:
        return "lost"
    if not answer.whole:
        return "truncated"
    if answer.status != 200:
        return "refused" if b'"error"' in answer.body else "wrong"
    if set(_IDS.findall(answer.body)) - {name.encode()}:
        return "wrong"
    aborted = b'"finish_reason":"abort"' in answer.body
    if b'"error"' in answer.body or aborted or not _TOKEN.search(answer.body):
        return "failed"
    ended = answer.data[-1:] == [b"[DONE]"] if streamed else name.encode() in answer.body
    return "whole" if ended else "wrong"


class Caller(Client):
    """A client's connection, made between these times (monotonic seconds). asked: requests on it
    so far."""

    connecting_s = 0.0
    connected_s = 0.0
    asked = 0


class Crowd:
    """Everybody who asks. asked: their requests. turned_away: who lost a connection before an
    answer was waited for. hasty: the pauses between requests are divided by it."""

    def __init__(self, port: int, seed: int, hasty: float = 1.0) -> None:
        self.asked: list[Asked] = []
        self.wrong: list[str] = []
        self.turned_away = 0
        self.turned_away_by: Counter[str] = Counter()
        self.stopping = False
        self._port = port
        self._draw = random.Random(seed)
        self._hasty = hasty
        self._history = ["You are a helpful assistant. " * 20]

    async def run(self, kinds: Sequence[Kind]) -> None:
        """One task for each until `stopping`; returns when their last requests are over."""

        async def again(kind: Kind) -> None:
            while not self.stopping:
                await self._let(kind)
                await self._pause(0.3)

        async with asyncio.TaskGroup() as group:
            for kind in kinds:
                group.create_task(again(kind))

    def usual(self) -> list[Kind]:
        """Who is there all the time."""
        return [
            *[self.talks] * 6, *[self.leaves] * 2, *[self.crawls] * 2,
            self.half_closes, self.is_hostile, self.is_malformed, self.renews,
        ]  # fmt: skip

    async def burst(self, count: int) -> None:
        """So many clients at once, each with one request."""
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._let(self.once))

    async def _let(self, kind: Kind) -> None:
        try:
            await kind()
        except ConnectionError as error:
            self.turned_away += 1
            self.turned_away_by[type(error).__name__] += 1

    async def _pause(self, mean_s: float) -> None:
        await asyncio.sleep(self._draw.random() * 2 * mean_s / self._hasty)

    @contextlib.asynccontextmanager
    async def _client(self, receive_bytes: int = 0) -> AsyncIterator[Caller]:
        connecting_s = time.monotonic()
        client = await Caller.connect(self._port, receive_bytes=receive_bytes)
        client.connecting_s, client.connected_s = connecting_s, time.monotonic()
        try:
            yield client
        finally:
            client.close()

    def _ask(self, client: Caller, kind: str) -> Asked:
        client.asked += 1
        asked = Asked(
            f"soak-{len(self.asked)}",
            client.connecting_s,
            client.connected_s,
            time.monotonic(),
            client.sock.getsockname()[1],
            kind,
            client.asked,
        )
        self.asked.append(asked)
        return asked

    def _request(self, asked: Asked, body: bytes, path: str = CHAT) -> bytes:
        kind = "content-type: application/json\r\n"
        return post(path, body, f"{kind}x-request-id: {asked.id}\r\n")

    async def _sent(self, client: Caller, asked: Asked, data: bytes) -> bool:
        """False if the connection was lost over it."""
        try:
            await client.send(data)
        except ConnectionError:
            asked.ended_s = time.monotonic()
            if asked.outcome == "open":
                asked.outcome = "lost"
            return False
        return True

    async def _answer(self, client: Caller, asked: Asked, *, streamed: bool) -> Answer:
        try:
            answer = await client.answer()
            asked.outcome = outcome(answer, asked.id, streamed=streamed)
            asked.status = answer.status
        except TimeoutError:
            answer = Answer(0, {})
            asked.outcome = "hung"
        asked.ended_s = time.monotonic()
        return answer

    def _prompt(self) -> str:
        """Mostly a turn more of what was said before."""
        if len(self._history) < 50 or self._draw.random() < 0.3:
            start = self._draw.choice(self._history)
            self._history.append(start + f" And then number {self._draw.random()}? " * 20)
            if len(self._history) > 200:
                del self._history[self._draw.randrange(1, 150)]
            self._history[1:] = [one for one in self._history[1:] if len(one) < 40_000]
        return self._draw.choice(self._history)

    async def talks(self) -> None:
        """Some requests on one connection, streamed or not."""
        async with self._client() as client:
            while not self.stopping:
                asked = self._ask(client, "talks")
                streamed = self._draw.random() < 0.6
                tokens = self._draw.randint(1, 40)
                if self._draw.random() < 0.8:
                    body = chat(self._prompt(), stream=streamed, max_tokens=tokens)
                    request = self._request(asked, body)
                else:
                    prompt = {"prompt": self._prompt(), "max_tokens": tokens, "stream": streamed}
                    request = self._request(asked, json_bytes({"model": "demo", **prompt}), TEXT)
                if not await self._sent(client, asked, request):
                    return
                answer = await self._answer(client, asked, streamed=streamed)
                if not answer.whole or answer.headers.get("connection") == "close":
                    return
                await self._pause(0.2)

    async def once(self) -> None:
        """A request on a connection of its own."""
        async with self._client() as client:
            asked = self._ask(client, "once")
            if await self._sent(client, asked, self._request(asked, chat("Quick!", max_tokens=8))):
                await self._answer(client, asked, streamed=False)

    async def fills(self, words: int, requests: int, letters: int = 8) -> None:
        """So many prompts of words that nobody has said before: what remembers words gets full."""
        word_bytes = letters // 2
        async with self._client() as client:
            for _ in range(requests):
                drawn = self._draw.randbytes(word_bytes * words).hex(" ", word_bytes)
                said = drawn.translate(_LETTERS)
                if not await self._says(client, "fills", said):
                    return

    async def stretches(self, times: int) -> None:
        """The longest of all hostile words, so many times: an encoder's thread keeps room for the
        longest that it has met."""
        async with self._client() as client:
            for _ in range(times):
                for text_of, _fewest, most in _HOSTILE:
                    if not await self._says(client, "stretches", text_of(self._draw, most)):
                        return

    async def _says(self, client: Caller, kind: str, text: str) -> bool:
        """Whether the connection can be used again."""
        asked = self._ask(client, kind)
        body = chat(text, max_tokens=1)
        if not await self._sent(client, asked, self._request(asked, body)):
            return False
        answer = await self._answer(client, asked, streamed=False)
        return answer.whole and answer.headers.get("connection") != "close"

    async def renews(self) -> None:
        """Fill and stretch again what is a new thread's, so that memory is at its most."""
        for words in (60, 800, 6_000):
            await self.fills(words, 2)
        await self.stretches(1)

    async def leaves(self) -> None:
        """Goes at any moment, politely or not."""
        async with self._client() as client:
            asked = self._ask(client, "leaves")
            asked.outcome = "left"
            body = chat(self._prompt(), stream=self._draw.random() < 0.7, max_tokens=30)
            await client.send(self._request(asked, body))
            await asyncio.sleep(self._draw.random() ** 2 * 0.5)
            asked.ended_s = time.monotonic()
            if self._draw.random() < 0.5:
                client.reset()

    async def crawls(self) -> None:
        """Sends in small pieces, and lets the answer wait."""
        async with self._client(receive_bytes=4096) as client:
            asked = self._ask(client, "crawls")
            request = self._request(asked, chat("Slowly. " * 50, stream=True, max_tokens=200))
            for at in range(0, len(request), 100):
                if not await self._sent(client, asked, request[at : at + 100]):
                    return
                await asyncio.sleep(0.02 / self._hasty)
            await self._pause(1.0)
            await self._answer(client, asked, streamed=True)

    async def half_closes(self) -> None:
        """Which is leaving."""
        async with self._client() as client:
            asked = self._ask(client, "half_closes")
            asked.outcome = "left"
            await client.send(self._request(asked, chat("Bye", stream=True)))
            with contextlib.suppress(OSError):
                client.sock.shutdown(socket.SHUT_WR)
            await client.rest()
            asked.ended_s = time.monotonic()

    async def is_hostile(self) -> None:
        """Text that is dear to tokenize, bodies that are none, models that nobody has."""
        async with self._client() as client:
            asked = self._ask(client, "is_hostile")
            dice = self._draw.random()
            if dice < 0.2:
                bodies = (b"{", b"[]", b"\xff\xfe", b'{"model": 1e999}', b"{}" * 99)
                body = self._draw.choice(bodies)
            elif dice < 0.3:
                body = chat(model=f"m{dice}")
            else:
                text_of, fewest, most = self._draw.choice(_HOSTILE)
                said = text_of(self._draw, self._draw.randint(fewest, most))
                body = chat(said, max_tokens=1)
            # Refused before all of it was sent, it may still have been answered.
            await self._sent(client, asked, self._request(asked, body))
            asked.outcome = "open"
            await self._answer(client, asked, streamed=False)
        await self._pause(1.0)

    async def is_malformed(self) -> None:
        """No request at all; its answer is an error or an end, whatever its id."""
        async with self._client() as client:
            data = self._draw.choice(_MALFORMED)
            await client.send(data)
            told = (await client.rest())[:12]
            if told and not told.startswith(b"HTTP/1.1 4") and not told.startswith(b"HTTP/1.1 5"):
                self.wrong.append(f"{data[:40]!r} was answered {told!r}")
        await self._pause(0.5)

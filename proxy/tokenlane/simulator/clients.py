"""Clients of the demo: people who chat and agents that call tools, so that there is something to
see.

    python -m tokenlane.simulator.clients URL       until its standard input closes

Invariants:
- A conversation grows by its answers: each turn's prompt begins with the previous one.
- A client that is refused or cut off begins another conversation after a pause; none gives up.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any

import aiohttp

from tokenlane.simulator.text import WORDS

CHATS, AGENTS = 12, 4
# A fleet that is worth watching: prompts take a while, answers stream, caches evict.
FLEET_FLAGS = (
    *("--prefill-tokens-per-s", "12000", "--token-interval-s", "0.02"),
    *("--cache-blocks", "3000", "--running-limit", "32", "--cache-generated", "true"),
)
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} a file of the workspace",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("read", "write", "search")
]

Message = dict[str, Any]


class Client:
    """One client. draw: its own, so that no two send the same. pause_s: about the time between two
    questions."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, draw: Random, pause_s: float
    ) -> None:
        self._session = session
        self._url = f"{url}/v1/chat/completions"
        self._draw = draw
        self._pause_s = pause_s

    async def chats(self) -> None:
        """Hold conversations of a few turns, one after the other."""
        draw = self._draw
        # A few system prompts, which conversations share.
        assistant = words(Random(draw.randrange(4)), 200)
        messages: list[Message] = [{"role": "system", "content": f"You are helpful. {assistant}"}]
        for _ in range(draw.randint(2, 8)):
            messages.append({"role": "user", "content": words(draw, draw.randint(10, 120))})
            said = await self._ask(messages, draw.randint(20, 120))
            messages.append({"role": "assistant", "content": said})
            await asyncio.sleep(3 * self._pause_s * draw.expovariate(1))

    async def works(self) -> None:
        """Do an agent's task: long prompts, short answers, hardly a pause."""
        draw = self._draw
        messages: list[Message] = [
            {"role": "system", "content": f"You are an agent. {words(Random(99), 2000)}"},
            {"role": "user", "content": words(draw, 100)},
        ]
        for _ in range(draw.randint(5, 15)):
            said = await self._ask(messages, draw.randint(10, 60), tools=_TOOLS)
            found = words(draw, draw.randint(50, 600))
            messages.append({"role": "assistant", "content": said})
            messages.append({"role": "user", "content": f"The tool answered: {found}"})
            await asyncio.sleep(self._pause_s * draw.random())

    async def _ask(self, messages: list[Message], tokens: int, **more: Any) -> str:
        """Return the answer. Raise aiohttp.ClientError where there is none."""
        body = {
            "model": "demo", "messages": messages, "max_tokens": tokens, "stream": True,
            "stream_options": {"include_usage": True}, **more,
        }  # fmt: skip
        async with self._session.post(self._url, json=body) as answer:
            answer.raise_for_status()
            return "".join([piece async for piece in _said(answer)])


async def _said(answer: aiohttp.ClientResponse) -> AsyncIterator[str]:
    async for line in answer.content:
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                yield choice["delta"].get("content") or ""


def words(draw: Random, count: int) -> str:
    """Return so many words."""
    return " ".join(draw.choices(WORDS, k=count))


async def run(
    url: str, ended: asyncio.Event, seed: int | None = None, pause_s: float = 1.0
) -> None:
    """Ask until told to stop."""

    async def again(client: Client, *, agent: bool) -> None:
        while True:
            try:
                await (client.works() if agent else client.chats())
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(pause_s)

    draw = Random(seed)
    async with (
        aiohttp.ClientSession(raise_for_status=False) as session,
        asyncio.TaskGroup() as all_,
    ):
        tasks = [
            all_.create_task(
                again(Client(session, url, Random(draw.random()), pause_s), agent=at < AGENTS)
            )
            for at in range(AGENTS + CHATS)
        ]
        await ended.wait()
        for task in tasks:
            task.cancel()


async def _until_eof(url: str) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    await run(url, ended)


@contextlib.contextmanager
def running(url: str) -> Iterator[None]:
    """Run the clients in a process of their own, which ends with this one."""
    argv = [sys.executable, "-m", __spec__.name, url]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield
        finally:
            process.terminate()


if __name__ == "__main__":
    asyncio.run(_until_eof(sys.argv[1]))

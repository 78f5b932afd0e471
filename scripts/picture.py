"""Takes docs/img/page.png: the live page over four simulated replicas and forty conversations.

python scripts/picture.py [FOLDER]       (needs Chromium)
"""

import asyncio
import contextlib
import random
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

SESSIONS = 40
# So that each replica's hour has begun.
LOAD_S = 155.0
SPEEDS = (
    *("--prefill-tokens-per-s", "9000", "--token-interval-s", "0.012"),
    *("--cache-blocks", "4000"),
)
WORDS = (ROOT / "LICENSE").read_text(encoding="utf-8").split()


async def converse(session: aiohttp.ClientSession, seed: int) -> None:
    """Conversations that grow, one after another, for ever; every third model call is a stream."""
    chance = random.Random(seed)
    while True:
        tools = " ".join(WORDS[: chance.choice((150, 600))])
        messages = [{"role": "system", "content": f"Agent {seed % 5}. {tools}"}]
        for _ in range(chance.randint(2, 9)):
            at = chance.randrange(len(WORDS) - 700)
            text = " ".join(WORDS[at : at + chance.randint(20, 700)])
            messages.append({"role": "user", "content": text})
            body = {
                "model": "demo",
                "messages": messages,
                "stream": True,
                "stream_options": {"include_usage": True},
                "max_tokens": chance.randint(10, 90),
            }
            async with session.post("/v1/chat/completions", json=body) as answer:
                await answer.read()
            messages.append({"role": "assistant", "content": "Done."})
            await asyncio.sleep(chance.expovariate(1.5))


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[str, str]]:
    """A fleet and a gateway of their own; the URLs of the data and the admin port."""
    from tokenlane.runtime.ports import free_ports
    from tokenlane.simulator.subprocess_fleet import FleetProcess
    from tokenlane.tokens.demo import demo_folder

    with FleetProcess(4, free_ports(4), SPEEDS) as fleet:
        backends = [word for url in fleet.urls for word in ("--backend", url)]
        gateway = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tokenlane", "serve", *backends, "--workers", "2",
            "--port", "0", "--admin-port", "0", "--tokenizer", f"demo={demo_folder()}",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert gateway.stdout is not None
        try:
            urls: list[str] = []
            while len(urls) < 2:
                if not (line := await gateway.stdout.readline()):
                    raise RuntimeError("the gateway ended before it served")
                urls += re.findall(r"http://\S+:\d+", line.decode())[:1]
            yield urls[0], urls[1]
        finally:
            with contextlib.suppress(ProcessLookupError):
                gateway.terminate()
            await gateway.wait()


@contextlib.asynccontextmanager
async def load(url: str) -> AsyncIterator[None]:
    """The conversations, while the context lasts."""
    async with aiohttp.ClientSession(url) as session, asyncio.TaskGroup() as group:
        tasks = [group.create_task(converse(session, n)) for n in range(SESSIONS)]
        yield
        for task in tasks:
            task.cancel()


async def main() -> dict[str, bytes]:
    """Load, then pictures by their names."""
    from tests.browser import browser

    pictures = {}
    async with served() as (data, admin), browser() as page, load(data):
        await page.look()
        await page.go(admin)
        await asyncio.sleep(LOAD_S)
        for name, width in (("dark", 1280), ("light", 1280), ("phone", 360)):
            await page.look(width, 1150, dark=name == "dark")
            if name == "phone":  # the page asks for the width once, when it is opened
                await page.go(admin)
            await asyncio.sleep(1.5)
            if name == "light":
                await page.run("document.querySelectorAll('#decisions details')[1].open = true")
                await asyncio.sleep(0.3)
            pictures[name] = await page.picture(whole=name == "phone")
    return pictures


if __name__ == "__main__":
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for name, picture in asyncio.run(main()).items():
        if given is not None:
            (given / f"{name}.png").write_bytes(picture)
        elif name == "light":
            (ROOT / "docs" / "img" / "page.png").write_bytes(picture)

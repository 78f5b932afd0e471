"""A replica ends at every byte of recorded streams, in every way there is: the client never takes a
part for the whole.

`make truncation` tries every byte; without --long a few of each stream, the last ones among them.
"""

import asyncio
import itertools
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.faults import killed
from tests.faults.streams import FOLDER, Recorded, recorded
from tests.raw import Answer, Client, Peer, Upstream, chat, json_bytes, post
from tests.support import gateway, listener
from tokenlane.config.settings import (
    HealthSettings,
    ServerSettings,
    Settings,
    UpstreamSettings,
)

TEXT_BODY = json_bytes({"model": "demo", "prompt": "hi", "stream": True})
BODIES = {"/v1/chat/completions": chat(stream=True), "/v1/completions": TEXT_BODY}
_TASKS = {"silence": 200}


def places(long: bool) -> Iterator[tuple[int, int]]:
    """(stream, cut): every one, or some."""
    draw = random.Random(3)
    for number, one in enumerate(recorded()):
        size = len(one.data)
        cuts = range(size) if long else {*draw.sample(range(size), 5), *range(size - 4, size)}
        yield from ((number, cut) for cut in sorted(cuts))


def check(answer: Answer, one: Recorded, cut: int) -> bool:
    """Whether it is a silent truncation. Fails the test on any other wrong byte."""
    assert answer.status in (200, 502, 504), (one.name, cut)
    if answer.status != 200:
        assert answer.whole
        assert answer.error["type"] == "server_error"
        return False
    relayed, mark, error = answer.body.partition(b'data: {"error":')
    assert one.payload.startswith(relayed), (one.name, cut)
    if mark:
        assert not relayed or relayed.endswith((b"\n\n", b"\r\n\r\n")), (one.name, cut)
        assert error.endswith(b"}\n\n")
    return answer.whole


async def by_script(peer: Peer) -> None:
    """FIN, RST or silence, as the request says."""
    asked = await peer.asked()
    [stream], [cut], [how] = map(asked.values, (b"x-stream", b"x-cut", b"x-how"))
    await peer.send(recorded()[int(stream)].data[: int(cut)])
    if how == b"silence":
        await peer.gone()
    peer.reset() if how == b"RST" else peer.close()


@asynccontextmanager
async def killed_replica() -> AsyncIterator[str]:
    """Its URL: processes that SIGKILL ends."""
    sock = listener()
    sock.listen(256)
    files = [str(FOLDER / f"{one.name}.http") for one in recorded()]
    argv = [sys.executable, "-S", killed.__file__, str(sock.fileno()), *files]
    process = await asyncio.create_subprocess_exec(
        *argv, pass_fds=[sock.fileno()], stdin=subprocess.PIPE
    )
    port = sock.getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        assert process.stdin is not None
        process.stdin.close()
        last = await Client.connect(port)  # it looks at its stdin when a child ends
        await last.send(post("/", b"", "x-stream: 0\r\nx-cut: 0\r\n"))
        await last.gone()
        last.close()
        sock.close()
        await asyncio.wait_for(process.wait(), 20)


@asynccontextmanager
async def replica(how: str) -> AsyncIterator[str]:
    if how == "kill-9":
        async with killed_replica() as url:
            yield url
    else:
        async with Upstream(by_script) as upstream:
            yield upstream.url


@pytest.mark.row("U1")
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("how", ["FIN", "RST", "kill-9", "silence"])
async def test_no_cut_is_silent(how: str, long: bool, figure: Callable[[str], None]) -> None:
    assert len(recorded()) == 20
    waiting = 0.05 if how == "silence" else 60.0
    settings = Settings(
        # On a busy machine 200 clients come faster than they are accepted: all wait.
        server=ServerSettings(accept_wait_limit_s=0.0),
        upstream=UpstreamSettings(
            connect_deadline_s=60.0,
            first_byte_deadline_s=waiting,
            between_chunks_deadline_s=waiting,
        ),
        health=HealthSettings(failure_limit_count=1_000_000_000),
    )
    left = places(long)
    silent: list[tuple[str, int]] = []
    cuts = itertools.count()
    async with replica(how) as url, gateway(url, settings=settings) as bench:

        async def client() -> None:
            for number, cut in left:
                one = recorded()[number]
                say = f"x-stream: {number}\r\nx-cut: {cut}\r\nx-how: {how}\r\n"
                answer = await bench.ask(post(one.path, BODIES[one.path], say))
                bench.clients.clear()
                next(cuts)
                if check(answer, one, cut):
                    silent.append((one.name, cut))

        async with asyncio.TaskGroup() as group:
            for _ in range(_TASKS.get(how, 8)):
                group.create_task(client())
    count = next(cuts)
    figure(f"{how}: {count:,} cuts of 20 streams, {len(silent)} silent")
    assert not silent

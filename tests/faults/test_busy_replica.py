"""A replica whose health probes run out of time while it answers requests, because its host or the
gateway's is short of CPU: it stays up, and is down once it answers nothing."""

import asyncio
import contextlib

import pytest

from tests.control.test_supervisor import Gateway, until
from tests.raw import Peer, Upstream, ok
from tokenlane.tokens.demo import demo_folder

pytestmark = pytest.mark.slow

CHAT = ok(b'{"choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}')
MODELS = ok(b'{"data":[{"id":"demo"}]}')


class Busy:
    """Answers what it is asked, but /health only while it is `well`. unanswered: probes so far."""

    def __init__(self) -> None:
        self.well = True
        self.unanswered = 0

    async def __call__(self, peer: Peer) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                line = (await peer.asked()).line
                if b" /health " in line and not self.well:
                    self.unanswered += 1
                else:
                    await peer.send(CHAT if b"/chat/" in line else MODELS)


@pytest.mark.row("U11")
async def test_a_replica_that_answers_is_not_down_for_its_probes() -> None:
    busy = Busy()
    async with Upstream(busy) as replica:
        argv = ["serve", "--backend", replica.url, "--tokenizer", f"demo={demo_folder()}"]
        # Time enough for a chat to end between two probes, however busy this machine is.
        quick = ("--control-probe-interval-s", "0.1", "--control-probe-deadline-s", "2")
        gateway = await asyncio.to_thread(Gateway, *argv, *quick)
        try:
            busy.well = False
            while busy.unanswered < 3:
                assert await asyncio.to_thread(gateway.chat) == 200
            # Nobody asks, so nothing speaks against the probes.
            await asyncio.to_thread(until, lambda: not gateway.status()["replicas"][0]["up"])
            assert await asyncio.to_thread(gateway.chat) == 503
            busy.well = True
            await asyncio.to_thread(until, lambda: gateway.chat() == 200)
        finally:
            await asyncio.to_thread(gateway.__exit__)

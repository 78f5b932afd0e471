"""A worker's start as its supervisor sees it: a real process at the other end of the channel."""

import asyncio
import os
import socket
from hashlib import sha256

import pytest

from tests.raw import CHAT, LIMIT_S, Client, chat, post
from tokenlane.channel.ends import SupervisorEnd
from tokenlane.channel.messages import Hello, Reload, Reloaded, Up, WorkerReady
from tokenlane.config.settings import Key, Settings
from tokenlane.control.supervisor import WORKER_ARGV
from tokenlane.fleet_state import FleetState
from tokenlane.runtime import ports
from tokenlane.telemetry.load_board import create_board
from tokenlane.telemetry.metrics.segment import create_segment

pytestmark = pytest.mark.slow

OLD, NEW = (Key(sha256(key).hexdigest(), "t") for key in (b"old-key", b"new-key"))


async def test_a_reload_that_comes_meanwhile_is_in_force_before_anybody_is_served() -> None:
    ours, theirs = socket.socketpair()
    fds = metrics_fd, board_fd = create_segment(), create_board(1, 1)
    said: asyncio.Queue[Up] = asyncio.Queue()
    end = SupervisorEnd(said.put_nowait)
    await end.attach(ours)
    with ports.reserve("127.0.0.1", 0) as held, theirs:
        host, port = ports.address_of(held)
        settings, nobody = Settings(), FleetState(1, ())
        end.send(Hello(0, settings, metrics_fd, board_fd, nobody, host, port, (OLD,)))
        end.send(Reload(1, settings, (NEW,)))
        channel = theirs.fileno()
        process = await asyncio.create_subprocess_exec(
            *WORKER_ARGV, str(channel), pass_fds=(channel, *fds)
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                assert await said.get() == Reloaded(1)
                assert isinstance(await said.get(), WorkerReady)
                client = await Client.connect(port)
                for key, status in (("old-key", 401), ("new-key", 503)):  # nobody is there
                    headers = f"authorization: Bearer {key}\r\ncontent-type: application/json\r\n"
                    assert (await client.ask(post(CHAT, chat(), headers))).status == status
                client.close()
        finally:
            process.kill()
            await process.wait()
            end.close()
            for descriptor in fds:
                os.close(descriptor)

"""`tokenlane top` in a real terminal, in front of a real admin port."""

import asyncio
import os
import pty
import signal
import socket
import sys
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.control.dashboard.test_screen import live_of
from tests.support import listener
from tokenlane.control.dashboard.live import Hour
from tokenlane.control.dashboard.page import page_routes

PATIENCE_S = 30.0


@asynccontextmanager
async def admin_port() -> AsyncIterator[str]:
    """Its URL."""
    app = web.Application()
    app.add_routes(page_routes(live_of, lambda: Hour(period_s=30.0, flows={})))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    sock = listener()
    await web.SockSite(runner, sock).start()
    yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    await runner.cleanup()


async def top(*argv: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, without a terminal."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tokenlane", "top", *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


class Terminal:
    """A pseudo terminal and what was written to it."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.text = ""

    async def until(self, shown: str) -> None:
        """Reads until this was written."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            while shown not in self.text:
                ready = asyncio.Event()
                loop.add_reader(self.master, ready.set)
                try:
                    await ready.wait()
                finally:
                    loop.remove_reader(self.master)
                self.text += os.read(self.master, 65536).decode(errors="replace")

    async def start(self, argv: Sequence[str]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tokenlane", "top", *argv,
            stdin=self.slave, stdout=self.slave, stderr=self.slave,
        )  # fmt: skip

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


@pytest.mark.slow
async def test_without_a_terminal_one_screen_is_all() -> None:
    async with admin_port() as url:
        code, out, err = await top("--admin", url + "/")
    assert (code, err) == (0, "")
    assert "tokenlane 1.2.3  serving" in out
    assert "it holds 4,096 of 5,000" in out
    assert "\x1b" not in out


@pytest.mark.slow
async def test_in_a_terminal_until_q() -> None:
    terminal = Terminal()
    termios.tcsetwinsize(terminal.slave, (24, 80))
    before = termios.tcgetattr(terminal.slave)
    async with admin_port() as url:
        process = await terminal.start(["--admin", url])
        await terminal.until("q quits")
        assert "\x1b[?1049h" in terminal.text
        terminal.text = ""
        await terminal.until("q quits")  # again, a second later
    await terminal.until("no gateway answers")
    await terminal.until("trying again")  # it may be in a later read
    os.write(terminal.master, b"q")
    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    await terminal.until("\x1b[?1049l")
    assert termios.tcgetattr(terminal.slave) == before
    terminal.close()


@pytest.mark.slow
@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGHUP])
async def test_a_terminal_is_as_it_was_after_a_signal(ends: signal.Signals) -> None:
    terminal = Terminal()
    before = termios.tcgetattr(terminal.slave)
    async with admin_port() as url:
        process = await terminal.start(["--admin", url])
        await terminal.until("q quits")
        process.send_signal(ends)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 128 + ends
    await terminal.until("\x1b[?1049l")
    assert termios.tcgetattr(terminal.slave) == before
    assert "Traceback" not in terminal.text
    terminal.close()


@pytest.mark.slow
async def test_nobody_there_and_somebody_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    code, out, err = await top("--admin", url, "--once")
    assert (code, out) == (1, "")
    assert err == (
        f"tokenlane: no gateway answers at {url} (Connection refused);"
        " is it running, and is this its admin port?\n"
    )
    async with admin_port() as url:
        code, out, err = await top("--admin", f"{url}/elsewhere", "--once")
    assert (code, out) == (1, "")
    assert "answers with something else: is it the admin port of a gateway?" in err

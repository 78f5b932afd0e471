"""A real Chromium without a window, driven by its DevTools protocol.

Invariants:
- Everything the page asked for and complained about is kept; nothing is filtered here.
- The browser and its profile are gone when the context ends.
"""

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aiohttp

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
LIMIT_S = 40.0
_SAYS_WHERE = b"DevTools listening on "


class Page:
    """One tab. requests: URLs asked for. complaints: errors and warnings on its console."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = count(1)
        self._session = ""
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.requests: list[str] = []
        self.complaints: list[str] = []

    async def open(self) -> None:
        """Makes the tab, with everything watched that it does."""
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", flatten=True, **target)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")

    async def listen(self) -> None:
        """Reads what the browser says until it ends."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                waiting = self._waiting.pop(said["id"])
                if "error" in said:
                    waiting.set_exception(RuntimeError(said["error"]["message"]))
                else:
                    waiting.set_result(said["result"])
            else:
                self._happened(said["method"], said["params"])

    def _happened(self, method: str, what: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(what["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(what["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if what["type"] in {"error", "warning", "assert"}:
                self.complaints.append(str(what["args"]))
            case "Log.entryAdded" if what["entry"]["level"] in {"error", "warning"}:
                self.complaints.append(str(what["entry"]))

    async def call(self, method: str, **params: Any) -> Any:
        """One command; its result. RuntimeError says why not."""
        number = next(self._ids)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        command: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        await self._socket.send_json(command)
        return await waiting

    async def look(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """The size of the window, and the reader's taste."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def go(self, url: str) -> None:
        """Opens an address."""
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        done = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(str(done["exceptionDetails"]))
        return done["result"].get("value")

    async def until(self, script: str, enough: Callable[[Any], bool] = bool) -> Any:
        """Waits until an expression says enough; what it said."""
        async with asyncio.timeout(LIMIT_S):
            while not enough(value := await self.run(script)):  # noqa: ASYNC110 - it is in another process
                await asyncio.sleep(0.05)
        return value

    async def picture(self, *, whole: bool = False) -> bytes:
        """A PNG of what the window shows. whole: what is below its edge too."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A fresh browser's only tab."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(prefix="tokenlane-browser-") as profile:
        process = await asyncio.create_subprocess_exec(
            PROGRAM, "--headless", "--no-sandbox", "--disable-gpu",
            "--disable-background-networking", "--disable-component-update", "--no-first-run",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            address = await _address(process)
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(address, max_msg_size=0) as socket,
            ):
                page = Page(socket)
                listening = asyncio.get_running_loop().create_task(page.listen())
                try:
                    await page.open()
                    yield page
                finally:
                    listening.cancel()
        finally:
            if process.returncode is None:
                process.terminate()
            assert process.stderr is not None
            await process.stderr.read()
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        async for line in process.stderr:
            if line.startswith(_SAYS_WHERE):
                return line.removeprefix(_SAYS_WHERE).decode().strip()
    raise RuntimeError("the browser did not start")

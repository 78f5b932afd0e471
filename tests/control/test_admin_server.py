"""What the admin port makes of requests that are none, of other names, and of readers without a
token. Over a real socket, in raw bytes."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tests.raw import Answer, Client, until
from tokenlane.config.secret import Secret
from tokenlane.config.settings import AdminSettings
from tokenlane.control import admin_server
from tokenlane.control.admin_access import AdminAccess
from tokenlane.control.admin_answers import answer
from tokenlane.control.admin_server import AdminRunner

TOKEN = "open-sesame-0123456789"
MARK = "q7Zx9"  # in every request: nothing of it comes back, nothing of it is logged


class Port:
    """An admin port whose routes show, read a body, and fail."""

    def __init__(self) -> None:
        self.settings = AdminSettings()
        self.token: Secret | None = None
        self.number = 0

    def configure(self, **fields: Any) -> None:
        self.settings = msgspec.structs.replace(self.settings, **fields)

    async def says(self, request: bytes) -> Answer:
        client = await Client.connect(self.number)
        try:
            return await client.ask(request)
        finally:
            client.close()

    async def get(self, path: str = "/status.json", host: str = "127.0.0.1", more: str = "") -> Any:
        told = await self.says(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode())
        return told.status, told.json if told.status == 200 else told.error["code"]


@asynccontextmanager
async def served() -> AsyncIterator[Port]:
    async def shows(_: web.Request) -> web.Response:
        return answer({})

    async def reads(request: web.Request) -> web.Response:
        await request.read()
        return answer({})

    async def fails(_: web.Request) -> web.Response:
        raise ValueError(MARK)

    port = Port()
    app = web.Application(client_max_size=100)
    for path in ("/status.json", "/livez", "/readyz", "/metrics"):
        app.router.add_get(path, shows)
    app.router.add_post("/explain", reads)
    app.router.add_get("/fails", fails)
    access = AdminAccess(lambda: port.settings, lambda: port.token)
    runner = AdminRunner(app, access, shutdown_timeout=0.01)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    port.number = listener.getsockname()[1]
    try:
        yield port
    finally:
        await runner.cleanup()


HEAD = "Host: localhost\r\n"
POST = f"POST /explain HTTP/1.1\r\n{HEAD}"
CHUNKED = f"{POST}transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (f"{MARK}\r\n\r\n", 400),
        (f"GET /{MARK} HTTP/9.9\r\n{HEAD}\r\n", 400),
        (f"GET / HTTP/1.1\r\n{HEAD}{MARK}\r\n\r\n", 400),
        (f"GET / HTTP/1.1\r\n{HEAD}a: {MARK}\0\r\n\r\n", 400),
        (f"GET /{MARK * 3000} HTTP/1.1\r\n{HEAD}\r\n", 400),
        (f"GET / HTTP/1.1\r\n{HEAD}a: {MARK * 3000}\r\n\r\n", 400),
        (f"GET http://[{MARK} HTTP/1.1\r\n{HEAD}\r\n", 400),
        (f"{POST}content-length: {MARK}\r\n\r\n", 400),
        (f"{POST}content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n{MARK}", 400),
        (f"{CHUNKED}{MARK}\r\n", 400),
        (f"{CHUNKED}5\r\n{MARK}{MARK}\r\n", 400),
        (f"{POST}content-encoding: gzip\r\ncontent-length: 5\r\n\r\n{MARK}", 400),
        (f"{POST}content-length: 500\r\n\r\n{MARK * 100}", 413),
        (f"GET /status.json HTTP/1.1\r\n{HEAD}Expect: {MARK}\r\n\r\n", 417),
        (f"{MARK} /status.json HTTP/1.1\r\n{HEAD}\r\n", 400),
        (f"GET /%00{MARK}%0a HTTP/1.1\r\n{HEAD}\r\n", 404),
        (f"PATCH /status.json?{MARK} HTTP/1.1\r\n{HEAD}\r\n", 405),
        (f"GET /status.json HTTP/1.1\r\nHost: {MARK}\r\n\r\n", 421),
    ],
)
async def test_errors_have_one_shape_and_repeat_nothing(
    request_: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with served() as port:
        told = await port.says(request_.encode())
        assert told.status == status
        assert told.error["type"] == "invalid_request_error"
        assert told.headers["content-type"].startswith("application/json")
        assert MARK not in str(told)
        assert (await port.get())[0] == 200
    assert not caplog.records


async def test_who_leaves_in_the_middle_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with served() as port:
        client = await Client.connect(port.number)
        await client.send(f"{POST}content-length: 50\r\nExpect: 100-continue\r\n\r\n".encode())
        assert b"100 Continue" in await client.through(b"\r\n\r\n")
        client.reset()
        assert (await port.get())[0] == 200
    assert not caplog.records


@pytest.mark.parametrize("rest", ["zz", ""], ids=["malformed", "missing"])
async def test_a_body_that_breaks_off_is_not_waited_for(
    rest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler waited for ever, with all that was read, also when the client had left."""
    monkeypatch.setattr(admin_server, "_BODY_DEADLINE_S", 0.05)
    async with served() as port:
        client = await Client.connect(port.number)
        await client.send(f"{CHUNKED}1\r\nx\r\n".encode())
        await until(lambda: any(map(_is_handling, asyncio.all_tasks())))
        await client.send(rest.encode())
        told = await client.answer()
        assert (told.status, told.error["code"]) == (408, "request_timeout")
        client.close()
        await until(lambda: not any(map(_is_handling, asyncio.all_tasks())))


def _is_handling(task: "asyncio.Task[Any]") -> bool:
    return "_handle_request" in repr(task.get_coro())


async def test_a_bug_is_told_to_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as port:
        assert await port.get("/fails") == (500, "internal_error")
    assert [record.message for record in caplog.records] == ["/fails failed"]


NAMES = [
    "localhost",
    "LocalHost:1",
    "127.0.0.1",
    "10.1.2.3:8081",
    "[::1]",
    "[fe80::1]:80",
    "gw.x:80",
]
STRANGERS = [
    "evil.example",
    "evil.example:8081",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example@127.0.0.1",
    "127.0.0.1/evil.example",
    "0x7f000001",
    "[::1",
    "",
]


@pytest.mark.parametrize("host", NAMES)
async def test_addresses_and_the_operators_names_are_the_ports(host: str) -> None:
    async with served() as port:
        port.configure(hosts=("GW.x",))
        assert (await port.get(host=host))[0] == 200


@pytest.mark.parametrize("host", STRANGERS)
@pytest.mark.parametrize("path", ["/status.json", "/metrics", "/livez", "/nothing"])
async def test_a_page_that_made_its_name_mean_this_machine_learns_nothing(
    host: str, path: str
) -> None:
    async with served() as port:
        status, code = await port.get(path, host)
        assert (status, code) in {(421, "unknown_host"), (400, "bad_request")}


async def test_the_name_that_it_listens_on_is_one_of_its_names() -> None:
    async with served() as port:
        assert (await port.get(host="gw.example"))[0] == 421
        port.configure(host="gw.example")
        assert (await port.get(host="gw.example:8081"))[0] == 200


async def test_a_probe_that_names_nobody_is_answered() -> None:
    async with served() as port:
        assert (await port.says(b"GET /readyz HTTP/1.0\r\n\r\n")).status == 200


async def test_reading_needs_the_token_where_the_operator_says_so() -> None:
    async with served() as port:
        port.token = Secret(TOKEN.encode())
        assert (await port.get())[0] == 200
        port.configure(read_needs_token=True)
        for path in ("/status.json", "/metrics", "/nothing", "/fails"):
            assert await port.get(path) == (401, "invalid_admin_token")
            wrong = f"Authorization: Bearer {TOKEN}x\r\n"
            assert await port.get(path, more=wrong) == (401, "invalid_admin_token")
        for path in ("/livez", "/readyz"):
            assert (await port.get(path))[0] == 200
        shown = f"Authorization: Bearer {TOKEN}\r\n"
        assert (await port.get("/metrics", more=shown))[0] == 200
        refused = await port.says(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert refused.headers["www-authenticate"] == "Bearer"

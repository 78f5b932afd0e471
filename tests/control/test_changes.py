"""Changes over the admin port: who may make them, and what they do. Over a real socket."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tokenlane.cli.main import main
from tokenlane.config.secret import Secret
from tokenlane.config.settings import AdminSettings, ControlSettings
from tokenlane.control.admin_access import AdminAccess
from tokenlane.control.admin_server import AdminRunner
from tokenlane.control.changes import Changes
from tokenlane.control.fleet_table import FleetTable
from tokenlane.control.reload import ReloadReport
from tokenlane.control.roster import Roster
from tokenlane.fleet_state import Load

TOKEN = "open-sesame-0123456789"
GOOD = {"Authorization": f"Bearer {TOKEN}"}


class Plane:
    """An admin port with changes, and what is behind it."""

    def __init__(self, token: str | None) -> None:
        self.token = Secret(token.encode()) if token else None
        self.table = FleetTable(("http://a:1",), ControlSettings())
        self.roster = Roster(self.table, 2, lambda _: Load(3, 0), lambda _added, _gone: None)
        self.report = ReloadReport("unchanged")
        self.access = AdminAccess(AdminSettings, lambda: self.token)
        self.changes = Changes(self.roster, self.access, lambda _: 3, self._reload)
        self.session = aiohttp.ClientSession()
        self.url = ""

    async def _reload(self) -> ReloadReport:
        return self.report

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        shown = GOOD if headers is None else headers
        async with self.session.request(
            method, self.url + path, json=body, headers=shown
        ) as response:
            return response.status, await response.json()

    @property
    def ids(self) -> list[str]:
        return [replica.id for replica in self.table.replicas]


@asynccontextmanager
async def serving(token: str | None) -> AsyncIterator[Plane]:
    plane = Plane(token)
    app = web.Application()
    app.router.add_routes(plane.changes.routes())
    runner = AdminRunner(app, plane.access, shutdown_timeout=0.01)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    plane.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield plane
    finally:
        await plane.session.close()
        await runner.cleanup()


VERBS = [
    ("POST", "/replicas", {"url": "http://b:1"}),
    ("POST", "/replicas/a:1/drain", None),
    ("DELETE", "/replicas/a:1", None),
    ("POST", "/reload", None),
]


@pytest.mark.row("S6")
@pytest.mark.parametrize(("method", "path", "body"), VERBS)
async def test_without_a_token_configured_nothing_can_be_changed(
    method: str, path: str, body: Any
) -> None:
    async with serving(None) as plane:
        before = plane.table.state
        for headers in ({}, {"Authorization": "Bearer "}, GOOD):
            status, told = await plane.ask(method, path, body, headers)
            assert (status, told["error"]["code"]) == (403, "changes_off")
            assert "admin.token_file" in told["error"]["message"]
        assert plane.table.state is before


@pytest.mark.row("S6")
@pytest.mark.parametrize(("method", "path", "body"), VERBS)
@pytest.mark.parametrize(
    "authorization",
    ["", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer é"],
)
async def test_a_wrong_token_changes_nothing_and_is_not_repeated(
    method: str, path: str, body: Any, authorization: str
) -> None:
    async with serving(TOKEN) as plane:
        before = plane.table.state
        headers = {"Authorization": authorization} if authorization else {}
        status, told = await plane.ask(method, path, body, headers)
        assert (status, told["error"]["code"]) == (401, "invalid_admin_token")
        assert TOKEN[:-1] not in str(told)
        assert plane.table.state is before


async def test_with_the_token_replicas_are_added_drained_and_removed() -> None:
    async with serving(TOKEN) as plane:
        row = {
            "id": "b:1",
            "url": "http://b:1",
            "origin": "api",
            "draining": False,
            "in_flight_requests": 3,
        }
        assert await plane.ask("POST", "/replicas", {"url": "http://b:1/"}) == (201, row)
        assert await plane.ask("POST", "/replicas", {"url": "http://b:1"}) == (200, row)
        status, told = await plane.ask("POST", "/replicas/b:1/drain")
        assert (status, told) == (200, {**row, "draining": True})
        assert plane.table.replicas[1].draining
        status, told = await plane.ask("DELETE", "/replicas/a%3A1")
        assert (status, told["id"], told["removed"]) == (200, "a:1", True)
        assert plane.ids == ["b:1"]
        for method, path in (("DELETE", "/replicas/a:1"), ("POST", "/replicas/a:1/drain")):
            status, told = await plane.ask(method, path)
            assert (status, told["error"]["code"]) == (404, "unknown_replica")
            assert "Known: b:1." in told["error"]["message"]


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({}, "invalid_body", '{"url": "http://HOST:PORT"}'),
        ({"url": 1}, "invalid_body", '{"url": "http://HOST:PORT"}'),
        ({"url": "http://b:1", "weight": 2}, "invalid_body", '{"url": "http://HOST:PORT"}'),
        (
            {"url": "b:1"},
            "invalid_replica",
            "'b:1' must look like http://HOST:PORT; did you mean http://b:1?",
        ),
        ({"url": "http://me:secret@b:1"}, "invalid_replica", "must not carry a user name"),
        ({"url": "http://me:secret@b:port"}, "invalid_replica", "must not carry a user name"),
        ({"url": "http://169.254.169.254/latest"}, "invalid_replica", "must end after its port"),
        ({"url": "https://a:1"}, "invalid_replica", "a:1 is in the fleet already"),
    ],
)
async def test_what_is_no_replica_is_refused_in_a_sentence(
    body: Any, code: str, words: str
) -> None:
    async with serving(TOKEN) as plane:
        status, told = await plane.ask("POST", "/replicas", body)
        assert (status, told["error"]["code"]) == (400, code)
        assert words in told["error"]["message"]
        assert not told["error"]["message"].endswith("?.")
        assert "secret" not in str(told)
        assert plane.ids == ["a:1"]


async def test_a_reload_says_what_became_of_it() -> None:
    async with serving(TOKEN) as plane:
        plane.report = ReloadReport("applied", ("routing.policy",), ("server.port",))
        status, told = await plane.ask("POST", "/reload")
        assert (status, told["outcome"], told["changed"], told["restart"]) == (
            200, "applied", ["routing.policy"], ["server.port"],
        )  # fmt: skip
        plane.report = ReloadReport("refused", problems=("gateway.yaml:3: is not YAML",))
        status, told = await plane.ask("POST", "/reload")
        assert (status, told["error"]["code"]) == (422, "config_refused")
        assert "gateway.yaml:3: is not YAML" in told["error"]["message"]


async def test_a_replica_is_drained_by_the_url_it_was_added_with(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLANE_ADMIN_TOKEN", TOKEN)
    async with serving(TOKEN) as plane:
        argv = ["replicas", "drain", "http://A:1/", "--admin", plane.url]
        assert await asyncio.to_thread(main, argv) == 0
        assert plane.table.replicas[0].draining
        assert capsys.readouterr().out.startswith("a:1  draining")


async def test_the_verbs_say_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(None) as plane:

        async def verb(*words: str) -> tuple[int, str]:
            code = await asyncio.to_thread(main, ["replicas", *words, "--admin", plane.url])
            return code, capsys.readouterr().err

        code, said = await verb("add", "http://b:1")
        assert (code, "Changes are off: no admin token is configured" in said) == (1, True)
        code, said = await verb("drain")
        assert (code, "which one? Give its id" in said) == (2, True)
        code, said = await verb("list", "a:1")
        assert (code, "takes no replica" in said) == (2, True)
    code, said = await verb("drain", "a:1")
    assert (code, "no gateway answers" in said) == (1, True)

"""Tokenizers from a hub: a small one in this process that answers as the hub's client asks."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from tokenlane.config.secret import SECRET_VARIABLES
from tokenlane.config.settings import Settings, TokenSettings
from tokenlane.control.tokenizers import hub
from tokenlane.control.tokenizers.finder import TokenizerSource
from tokenlane.control.tokenizers.resolution import discover
from tokenlane.tokens.demo import demo_folder

REVISION = "c0ffee" + 34 * "0"


class Hub:
    """Repositories: name -> files. asked: paths."""

    def __init__(self) -> None:
        folder = demo_folder()
        files = ("tokenizer.json", "tokenizer_config.json")
        self.repositories = {"org/m": {name: (folder / name).read_bytes() for name in files}}
        self.asked: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        name, _, rest = request.path.lstrip("/").partition("/resolve/")
        files = self.repositories.get(name)
        if files is None:
            return web.Response(status=404, headers={"x-error-code": "RepoNotFound"})
        file = rest.partition("/")[2]
        headers = {"x-repo-commit": REVISION, "etag": f'"{len(file)}{len(files)}"'}
        if file not in files:
            return web.Response(status=404, headers={**headers, "x-error-code": "EntryNotFound"})
        body = files[file]
        if request.method == "HEAD":
            headers["content-length"] = str(len(body))
            return web.Response(headers=headers)
        return web.Response(body=body, headers=headers)


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    """A hub that the environment names, and an empty cache."""
    made = Hub()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    monkeypatch.setenv("HF_ENDPOINT", made.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield made
    await runner.cleanup()


async def found(model: str, **tokens: object) -> TokenizerSource:
    settings = Settings(tokens=TokenSettings(**tokens))  # type: ignore[arg-type]
    return (await discover(settings, [model], {}))[model]


@pytest.mark.slow
async def test_it_is_fetched_once_and_never_asked_for_again(served: Hub) -> None:
    source = await found("org/m")
    assert source.how == "fetched from the hub as org/m"
    assert source.folder is not None
    assert Path(source.folder).name == REVISION
    assert set(os.listdir(source.folder)) == set(served.repositories["org/m"])
    served.asked.clear()
    assert (await found("org/m")).how == "the local hub cache"
    assert not served.asked


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("org/none", "the hub: org/none is not there, or wants a token (HF_TOKEN)"),
        ("org/empty", "the hub: org/empty has no tokenizer.json"),
    ],
)
async def test_what_is_not_there(served: Hub, model: str, why: str) -> None:
    served.repositories["org/empty"] = {}
    source = await found(model)
    assert source.folder is None
    assert source.how.endswith(why)


async def test_it_is_not_asked_for_what_has_no_place_there(served: Hub) -> None:
    assert (await found("my-model")).folder is None
    assert (await found("org/m", fetch=False)).folder is None
    assert (await found("org/m", discover=False)).how == "not looked for"
    assert not served.asked


async def test_offline(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert (await found("org/m")).how.endswith("the hub is not asked (HF_HUB_OFFLINE)")
    assert not served.asked


@pytest.mark.slow
async def test_a_hub_that_cannot_be_reached(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert (await found("org/m", fetch_deadline_s=20.0)).how.endswith(
        "; the hub: 127.0.0.1 cannot be reached from here"
    )


@pytest.mark.slow
async def test_its_client_gets_of_the_secrets_only_its_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # takes connections, never answers
        listener.setblocking(False)
        environ = {
            **os.environ,
            **dict.fromkeys(SECRET_VARIABLES, "secret"),
            "HF_TOKEN": "its own",
            "HF_ENDPOINT": f"http://127.0.0.1:{listener.getsockname()[1]}",
            "HF_HUB_CACHE": str(tmp_path),
        }
        # What another test started may end later than that one.
        loop, others = asyncio.get_running_loop(), set(psutil.Process().children())
        fetching = loop.create_task(hub.fetch("org/m", 60.0, print, environ))
        async with asyncio.timeout(30):
            client, _ = await loop.sock_accept(listener)
        (child,) = set(psutil.Process().children()) - others
        given = child.environ()
        fetching.cancel()
        await asyncio.wait((fetching,))
        client.close()
    assert given["HF_TOKEN"] == "its own"
    assert not set(SECRET_VARIABLES) & set(given)


async def test_a_start_does_not_wait_for_ever(tmp_path: Path) -> None:
    told: list[str] = []
    environ = {**os.environ, "HF_HUB_CACHE": str(tmp_path)}
    why = await hub.fetch("org/m", 0.0, told.append, environ)
    assert why == "the hub: no whole answer within 0 s (tokens.fetch_deadline_s)"
    assert not told

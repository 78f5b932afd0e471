"""Endpoint slices listed and watched, from a server that speaks the API's protocol."""

import asyncio
import random
import shutil
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.certificates import made_certificates
from tests.config.test_tls import folder as tls_folder
from tests.control.discovery.apiserver import ApiServer, serving, slice_of
from tests.control.discovery.test_sources import Scene, until
from tokenlane.config.settings import DiscoverySettings
from tokenlane.control.discovery import kubernetes, sources
from tokenlane.control.discovery.kubernetes import Kubernetes, service
from tokenlane.errors import ConfigError

pki = tls_folder  # a certificate authority, and a certificate of its making


class Told:
    """What a source says, in order."""

    def __init__(self) -> None:
        self.words: list[list[str] | None] = []
        self._news = asyncio.Event()

    def __call__(self, urls: Iterable[str] | None) -> None:
        self.words.append(None if urls is None else list(urls))
        self._news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not true():
                self._news.clear()
                await self._news.wait()

    async def last(self, *addresses: str) -> None:
        urls = [f"http://{address}:8000" for address in addresses]
        await self.until(lambda: bool(self.words) and self.words[-1] == urls)


@asynccontextmanager
async def following(settings: DiscoverySettings) -> AsyncIterator[Told]:
    told = Told()
    task = asyncio.get_running_loop().create_task(Kubernetes(settings).run(told))
    try:
        yield told
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait((task,))


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiscoverySettings:
    monkeypatch.setattr(kubernetes, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(kubernetes, "LAST_PAUSE_S", 0.02)
    (tmp_path / "token").write_text("first\n", encoding="ascii")
    return DiscoverySettings(
        kubernetes_service="ns/vllm", kubernetes_token_file=str(tmp_path / "token")
    )


def at(settings: DiscoverySettings, server: ApiServer) -> DiscoverySettings:
    return msgspec.structs.replace(settings, kubernetes_url=server.url)


async def test_a_list_in_pages_then_what_changes(settings: DiscoverySettings) -> None:
    server = ApiServer("first", page_limit=2)
    for number in range(5):
        server.put(slice_of(f"s{number}", f"10.0.0.{number}"))
    server.put(slice_of("other", "10.9.9.9", service="other"))
    async with serving(server), following(at(settings, server)) as told:
        await told.last(*(f"10.0.0.{number}" for number in range(5)))
        assert [query.get("continue") for query in server.asked[:3]] == [None, "2", "4"]
        server.put(slice_of("s5", "10.0.0.7", "10.0.0.8"))
        await told.last(*(f"10.0.0.{number}" for number in (0, 1, 2, 3, 4, 7, 8)))
        server.put(slice_of("s5", "10.0.0.7", ready=False))
        await told.last(*(f"10.0.0.{number}" for number in range(5)))
        for number in range(4):
            server.delete(f"s{number}")
        await told.last("10.0.0.4")
        server.delete("s4")  # the service has nobody: that is known, and no failure
        await told.until(lambda: told.words[-1] == [])
        assert None not in told.words
        assert len([query for query in server.asked if "watch" not in query]) == 3


async def test_a_watch_that_is_cut_goes_on_where_it_was(settings: DiscoverySettings) -> None:
    server = ApiServer()
    server.put(slice_of("a", "10.0.0.1"))
    async with serving(server), following(at(settings, server)) as told:
        await told.last("10.0.0.1")
        server.put(slice_of("b", "10.0.0.2"))
        await told.last("10.0.0.1", "10.0.0.2")
        version = server.version
        server.cut()
        server.put(slice_of("c", "10.0.0.3"))
        await told.last("10.0.0.1", "10.0.0.2", "10.0.0.3")
        lists = [query for query in server.asked if "watch" not in query]
        watches = [query for query in server.asked if "watch" in query]
        assert len(lists) == 1
        assert watches[-1]["resourceVersion"] == str(version)
        assert watches[-1]["allowWatchBookmarks"] == "true"


async def test_a_bookmark_keeps_the_place_young(settings: DiscoverySettings) -> None:
    server = ApiServer()
    server.put(slice_of("a", "10.0.0.1"))
    async with serving(server), following(at(settings, server)) as told:
        await told.last("10.0.0.1")
        while not server.watching:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.005)
        # Much happens that is nobody's business here, and is forgotten up to the bookmark.
        for number in range(50):
            server.put(slice_of(f"x{number}", "10.9.9.9", service="other"))
        server.bookmark()
        server.oldest = server.version
        server.put(slice_of("b", "10.0.0.2"))
        await told.last("10.0.0.1", "10.0.0.2")
        server.cut()
        server.put(slice_of("c", "10.0.0.3"))
        await told.last("10.0.0.1", "10.0.0.2", "10.0.0.3")
        assert len([query for query in server.asked if "watch" not in query]) == 1


async def test_what_the_server_has_forgotten_is_listed_anew(settings: DiscoverySettings) -> None:
    server = ApiServer()
    server.put(slice_of("a", "10.0.0.1"))
    async with serving(server), following(at(settings, server)) as told:
        await told.last("10.0.0.1")
        del server.slices["a"]  # while nobody watches
        server.slices["b"] = slice_of("b", "10.0.0.2")
        server.forget()
        await told.last("10.0.0.2")
        assert len([query for query in server.asked if "watch" not in query]) == 2
        assert None not in told.words  # nobody left the fleet for it


async def test_watches_that_end_at_once_do_not_follow_each_other_at_once(
    settings: DiscoverySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = 0

    def drawn(low: float, high: float) -> float:
        nonlocal pauses
        pauses += 1
        return (low + high) / 2

    monkeypatch.setattr(random, "uniform", drawn)
    server = ApiServer()
    server.put(slice_of("a", "10.0.0.1"))
    async with serving(server), following(at(settings, server)) as told:
        await told.last("10.0.0.1")
        server.brief = True
        server.cut()
        while len(server.asked) < 8:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.005)
        assert len([query for query in server.asked if "watch" in query]) <= pauses + 1
        assert None not in told.words


async def test_the_token_is_read_anew_and_refusals_change_nothing(
    settings: DiscoverySettings, caplog: pytest.LogCaptureFixture
) -> None:
    server = ApiServer("first")
    server.put(slice_of("a", "10.0.0.1"))
    async with serving(server), following(at(settings, server)) as told:
        await told.last("10.0.0.1")
        server.token = "second"
        server.cut()
        await told.until(lambda: told.words[-1] is None)
        token = Path(settings.kubernetes_token_file)
        await asyncio.to_thread(token.write_text, "second", encoding="ascii")
        server.put(slice_of("a", "10.0.0.1", "10.0.0.2"))
        await told.last("10.0.0.1", "10.0.0.2")
    assert [] not in told.words
    assert "status 401; is the token good?" in caplog.text
    assert "second" not in caplog.text


async def test_a_server_that_is_away_changes_nothing(settings: DiscoverySettings) -> None:
    server = ApiServer()
    server.put(slice_of("a", "10.0.0.1"))
    gone = msgspec.structs.replace(settings, kubernetes_url="http://127.0.0.1:9")
    async with following(gone) as told:
        await told.until(lambda: len(told.words) > 2)
        assert set(map(str, told.words)) == {"None"}


async def test_the_servers_certificate_is_checked(settings: DiscoverySettings, pki: Path) -> None:
    server = ApiServer("first")
    server.put(slice_of("a", "10.0.0.1"))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pki / "node.pem", pki / "node.key")
    async with serving(server, tls):
        believed = msgspec.structs.replace(
            at(settings, server), kubernetes_ca_file=str(pki / "ca.pem")
        )
        async with following(believed) as told:
            await told.last("10.0.0.1")
        asked = len(server.asked)
        strange = msgspec.structs.replace(at(settings, server), kubernetes_ca_file="")
        told = Told()
        with pytest.raises(ConfigError, match=r"is its CA in discovery\.kubernetes_ca_file"):
            async with asyncio.timeout(20):
                await Kubernetes(strange).run(told)
        assert told.words == [None]
        assert len(server.asked) == asked  # no token was shown to it


async def test_a_ca_that_is_renewed_is_read_again(
    settings: DiscoverySettings, pki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "AGAIN_S", 0.02)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pki / "node.pem", pki / "node.key")
    believed = tmp_path / "ca.crt"
    (tmp_path / "other").mkdir()
    shutil.copy(made_certificates(tmp_path / "other") / "ca.pem", believed)
    server, scene = ApiServer("first"), Scene()
    server.put(slice_of("a", "10.0.0.1"))
    async with serving(server, tls):
        scene.discovery.configure(
            msgspec.structs.replace(at(settings, server), kubernetes_ca_file=str(believed))
        )
        await scene.discovery.first.wait()
        assert not scene.staying
        shutil.copy(pki / "ca.pem", believed)
        await until(lambda: scene.staying == ["10.0.0.1:8000"])
        await scene.discovery.close()


def test_which_service(tmp_path: Path) -> None:
    token = tmp_path / "token"
    named = DiscoverySettings(kubernetes_service="vllm", kubernetes_token_file=str(token))
    with pytest.raises(ConfigError, match="needs its namespace, as NAMESPACE/vllm"):
        service(named)
    (tmp_path / "namespace").write_text("mine\n", encoding="ascii")
    assert service(named)[:2] == ("mine", "vllm")
    for wrong in ("a/b/c", "/vllm", "ns/"):
        with pytest.raises(ConfigError, match="must look like"):
            service(DiscoverySettings(kubernetes_service=wrong))

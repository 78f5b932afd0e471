"""TLS on both sides, and whose forwarded headers are believed."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.certificates import made_certificates
from tests.raw import CHAT, Upstream, answering, chat, ok, post, stream
from tests.support import Bench, gateway
from tokenlane.config.settings import ControlSettings, ServerSettings, Settings, UpstreamSettings
from tokenlane.config.tls import server_context, upstream_context
from tokenlane.control.checks import check_network
from tokenlane.control.probes import open_session, probe
from tokenlane.errors import ConfigError
from tokenlane.telemetry.metrics import families

FORWARDED = (
    "x-forwarded-for: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\n"
    "X-Forwarded-Proto: https\r\nX-Forwarded-Host: elsewhere\r\nx-mine: 1\r\n"
)
NAMES = (b"x-forwarded-for", b"forwarded", b"x-real-ip", b"x-forwarded-proto", b"x-forwarded-host")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, and node.pem with node.key, made by it for 127.0.0.1."""
    return made_certificates(tmp_path_factory.mktemp("tls"))


def client_context(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=folder / "ca.pem")


def towards(folder: Path, *, shown: bool = True) -> ssl.SSLContext:
    """What the gateway uses. shown: with a certificate of its own."""
    own = f"{folder}/node" if shown else ""
    settings = UpstreamSettings(
        tls_ca_file=f"{folder}/ca.pem",
        tls_cert_file=own and own + ".pem",
        tls_key_file=own and own + ".key",
    )
    return upstream_context(settings)


@asynccontextmanager
async def replica(folder: Path) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A TLS server that wants a client's certificate; its URL and the heads it got."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "node.pem", folder / "node.key")
    context.verify_mode = ssl.CERT_REQUIRED
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head)
                if head.startswith(b"GET"):
                    writer.write(ok(b'{"data":[{"id":"demo"}]}'))
                    continue
                await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
                writer.write(stream())
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()


async def over_tls(bench: Bench, folder: Path) -> tuple[int, bytes]:
    url = f"https://127.0.0.1:{bench.port}{CHAT}"
    async with aiohttp.ClientSession() as session:
        async with session.post(url, data=chat(stream=True), ssl=client_context(folder)) as answer:
            return answer.status, await answer.read()


async def test_a_goodbye_over_tls_is_no_failure(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every client that said goodbye before it closed left a traceback in the log."""
    server = ServerSettings(tls_cert_file=f"{folder}/node.pem", tls_key_file=f"{folder}/node.key")
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=Settings(server=server)) as bench:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", bench.port, ssl=client_context(folder)
            )
            writer.write(post(CHAT, chat()))
            await reader.readuntil(b"{}")
            writer.close()
            await writer.wait_closed()
    assert not caplog.records


async def test_an_answer_over_tls_may_end_with_a_goodbye(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that only the end of its connection frames was taken for truncated."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        writer.write(b'{"id":"x"}')
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "node.pem", folder / "node.key")
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with gateway(url, tls=towards(folder)) as bench:
        answer = await bench.ask(post(CHAT, chat()))
        assert (answer.status, answer.whole, answer.body) == (200, True, b'{"id":"x"}')
        server.close()
    assert not caplog.records


async def test_tls_from_end_to_end(folder: Path) -> None:
    server = ServerSettings(
        tls_cert_file=f"{folder}/node.pem", tls_key_file=f"{folder}/node.key", head_deadline_s=2.0
    )
    async with replica(folder) as (url, heads):
        settings = Settings(server=server)
        async with gateway(url, settings=settings, tls=towards(folder)) as bench:
            for _ in range(3):
                status, body = await over_tls(bench, folder)
                assert (status, body[-14:]) == (200, b"data: [DONE]\n\n")
            # What is no TLS gets no answer, and hurts nobody.
            plain = await bench.client()
            await plain.send(post(CHAT, chat()))
            assert b"HTTP/" not in await plain.rest()
            plain.close()
            assert (await over_tls(bench, folder))[0] == 200
    assert len(heads) == 4


@pytest.mark.parametrize("wrong", ["nothing shown", "another CA", "another name"])
async def test_a_replica_that_is_not_trusted_gets_nothing(folder: Path, wrong: str) -> None:
    context = towards(folder, shown=wrong != "nothing shown")
    if wrong == "another CA":
        context = ssl.create_default_context()
    async with replica(folder) as (url, heads):
        # It listens on all of 127.0.0.0/8 and has a certificate for one address.
        at = url if wrong != "another name" else url.replace("127.0.0.1", "127.0.0.2")
        async with gateway(at, tls=context) as bench:
            answer = await bench.ask(post(CHAT, chat()))
            assert answer.status in (502, 503)
            if wrong != "nothing shown":  # in TLS 1.3 that is said after the handshake
                name = at.partition("://")[2]
                assert bench.metric(families.UPSTREAM_FAILURES, "demo", name, "protocol") > 0
    assert heads == []


async def test_probes_speak_tls(folder: Path) -> None:
    async with replica(folder) as (url, _):
        settings = ControlSettings(probe_deadline_s=5.0)
        async with open_session(settings, tls=towards(folder)) as session:
            found = await probe(session, url)
            assert (found.reason, found.models) == ("ok", ("demo",))
        async with open_session(settings) as session:
            assert (await probe(session, url)).reason == "tls"


def test_wrong_files(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.tls_cert_file"):
        server_context(ServerSettings(tls_cert_file=f"{folder}/node.key"))
    with pytest.raises(ConfigError, match="No such file"):
        server_context(ServerSettings(tls_cert_file="/nowhere"))
    with pytest.raises(ConfigError, match="is not"):
        server_context(ServerSettings(tls_key_file=f"{folder}/node.key"))
    with pytest.raises(ConfigError, match="is not"):
        upstream_context(UpstreamSettings(tls_key_file=f"{folder}/node.key"))
    with pytest.raises(ConfigError, match=r"upstream\.tls_ca_file"):
        upstream_context(UpstreamSettings(tls_ca_file=f"{folder}/node.key"))
    with pytest.raises(ConfigError, match=r"10\.0\.0\.0/8"):
        check_network("10.0.0.0/33")
    assert server_context(ServerSettings()) is None


@pytest.mark.row("S10")
@pytest.mark.parametrize(
    ("trusted", "passes"),
    [((), False), (("10.0.0.0/8", "::1"), False), (("10.0.0.0/8", "127.0.0.0/8"), True)],
)
async def test_forwarded_headers_are_believed_of_trusted_peers(
    trusted: tuple[str, ...], passes: bool
) -> None:
    settings = Settings(server=ServerSettings(trusted_peers=trusted))
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=settings) as bench:
            for _ in range(2):
                await bench.ask(post(CHAT, chat(), FORWARDED))
    for asked in upstream.asked:
        assert [bool(asked.values(name)) for name in NAMES] == [passes] * len(NAMES)
        assert asked.values(b"x-mine") == [b"1"]

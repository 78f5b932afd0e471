"""The client against real servers: one alone, with users, with TLS, a cluster, sentinels."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from bench.tools.store_server import StoreServer
from tests.certificates import made_certificates
from tests.stores import behind_tls, needs_store, scripted_store, store
from tokenlane.config.settings import FleetSettings
from tokenlane.control.peers.store_client import DEADLINE_S, StoreClient, StoreError
from tokenlane.runtime.ports import free_ports

pytestmark = [pytest.mark.slow, needs_store]
__all__ = ["store"]


async def shared(settings: FleetSettings) -> None:
    """Two clients hear each other, and nothing of before."""
    early, late = StoreClient(settings), StoreClient(settings)
    try:
        assert await early.exchange(b"nobody hears this") == []
        assert await late.exchange(b"one") == []
        assert await early.exchange(b"two") == [b"one", b"two"]
        assert await late.exchange(None) == [b"two"]
        assert await late.exchange(None) == []
    finally:
        await early.close()
        await late.close()


async def test_a_server(store: StoreServer) -> None:
    await shared(FleetSettings(store=store.url))
    await shared(FleetSettings(store=f"{store.url}/3", name="another"))


async def test_fleets_do_not_hear_each_other(store: StoreServer) -> None:
    one = StoreClient(FleetSettings(store=store.url, name="one"))
    two = StoreClient(FleetSettings(store=store.url, name="two"))
    for client in (one, two):
        await client.exchange(b"here")
    assert await one.exchange(b"hello") == [b"hello"]
    assert await two.exchange(None) == []
    await one.close()
    await two.close()


async def test_what_is_read_says_what_time_it_is(store: StoreServer) -> None:
    client = StoreClient(FleetSettings(store=store.url))
    for _ in range(2):
        began_s, _ = await client.look()
        await client.exchange(b"tick")
        # The number of an entry has whole milliseconds.
        assert began_s - 0.001 <= client.clock_s <= (await client.look())[0]
    read_s = client.clock_s
    await client.exchange(None)
    assert client.clock_s == read_s
    await client.close()


async def test_a_stream_that_was_emptied_goes_on(store: StoreServer) -> None:
    client = StoreClient(FleetSettings(store=store.url))
    await client.exchange(b"one")
    # As after a failover to a server whose clock is behind.
    client._read_to = b"9999999999999-0"
    assert await client.exchange(b"two") == []
    assert await client.exchange(b"three") == [b"three"]
    await client.close()


async def test_a_user_with_a_password(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("open-sesame\n")
    rights = "me on >open-sesame ~tokenlane:* +xadd +xread +expire +client"
    acl = ("--user", *rights.split(), "--user", "default", "off")
    with StoreServer(*acl) as server:
        url = server.url.replace("//", "//me@")
        await shared(FleetSettings(store=url, password_file=str(file)))
        file.write_text("wrong-sesame")
        client = StoreClient(FleetSettings(store=url, password_file=str(file)))
        with pytest.raises(StoreError) as error:
            await client.exchange(b"x")
        assert "sesame" not in str(error.value)
        await client.close()


async def test_tls_with_a_certificate_of_ones_own(store: StoreServer, tmp_path: Path) -> None:
    folder = made_certificates(tmp_path)
    async with behind_tls(store.port, folder) as port:
        own: dict[str, Any] = {
            "tls_cert_file": f"{folder}/node.pem",
            "tls_key_file": f"{folder}/node.key",
        }
        url, ca_file = f"rediss://127.0.0.1:{port}", f"{folder}/ca.pem"
        await shared(FleetSettings(store=url, tls_ca_file=ca_file, **own))
        for settings in (
            FleetSettings(store=url, tls_ca_file=ca_file),  # shows none
            FleetSettings(store=url, **own),  # trusts the system's alone
            FleetSettings(store=f"rediss://127.0.0.2:{port}", tls_ca_file=ca_file, **own),
        ):
            client = StoreClient(settings)
            with pytest.raises(StoreError):
                await client.exchange(b"x")
            await client.close()


async def test_a_cluster(tmp_path: Path) -> None:
    bus = ("--cluster-port", str(free_ports(1)))
    with StoreServer("--cluster-enabled", "yes", *bus, "--dir", str(tmp_path)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"CLUSTER ADDSLOTSRANGE 0 16383\r\n")
        assert await reader.readline() == b"+OK\r\n"
        answer = b""
        while b"cluster_state:ok" not in answer:
            writer.write(b"CLUSTER INFO\r\n")
            answer = await reader.read(4096)
        writer.close()
        await shared(FleetSettings(store=server.url.replace("redis:", "redis+cluster:")))


async def test_sentinels(store: StoreServer, tmp_path: Path) -> None:
    config = tmp_path / "sentinel.conf"
    config.write_text(f"sentinel monitor main 127.0.0.1 {store.port} 1\n")
    with StoreServer("--sentinel", config=config) as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
        await shared(FleetSettings(store=url))


async def twice(client: StoreClient) -> None:
    for message in (b"one", b"two"):
        await client.exchange(message)


@pytest.mark.parametrize(
    "answer", [b"", b"-ERR broken\r\n", b"nonsense\r\n", b"*-7\r\n", b":1\r\n"]
)
async def test_whatever_is_wrong_is_an_error_in_time(answer: bytes) -> None:
    port = free_ports(1)
    async with scripted_store(port, answer):
        client = StoreClient(FleetSettings(store=f"redis://127.0.0.1:{port}"))
        began_s = time.monotonic()
        with pytest.raises(StoreError):
            await twice(client)
        assert time.monotonic() - began_s < DEADLINE_S * 10  # and not for ever
        await client.close()

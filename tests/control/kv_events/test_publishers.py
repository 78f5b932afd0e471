"""Where events are published: what replicas say of it, and what the settings say."""

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from tokenlane.config.settings import KvSource
from tokenlane.control.kv_events.publishers import EventEndpoint, configured, described, discover
from tokenlane.errors import ConfigError


def source(endpoint: Any, replay: Any = None, **more: Any) -> dict[str, Any]:
    return {"publisher": "zmq", "endpoint": endpoint, "replay_endpoint": replay, **more}


def test_a_server_of_version_0_32() -> None:
    answer = {
        "0": source("tcp://*:5561", "tcp://*:5562", topic="t", buffer_steps=10_000),
        "1": source("tcp://*:5562", "tcp://*:5563", topic="t", buffer_steps=10_000),
    }
    assert described(answer, "10.0.0.1") == (
        EventEndpoint(0, "tcp://10.0.0.1:5561", "tcp://10.0.0.1:5562", "t"),
        EventEndpoint(1, "tcp://10.0.0.1:5562", "tcp://10.0.0.1:5563", "t"),
    )


def test_the_same_address_for_every_rank_is_that_of_the_first() -> None:
    answer = {str(rank): source("tcp://*:5561", "tcp://*:6561") for rank in (0, 1)}
    assert [(one.live, one.replay) for one in described(answer, "h")] == [
        ("tcp://h:5561", "tcp://h:6561"),
        ("tcp://h:5562", "tcp://h:6562"),
    ]


@pytest.mark.parametrize(
    ("endpoint", "live"),
    [
        ("tcp://*:5561", "tcp://h:5561"),
        ("tcp://[::]:5561", "tcp://h:5561"),
        ("tcp://10.9.9.9:5561", "tcp://h:5561"),  # never another host than the replica's
        ("tcp://collector:5561", None),
        ("tcp://*:0", None),
        ("tcp://*:99999", None),
        ("ipc:///tmp/x", None),
        (None, None),
        (7, None),
    ],
)
def test_addresses(endpoint: Any, live: str | None) -> None:
    assert [one.live for one in described({"0": source(endpoint)}, "h")] == ([live] if live else [])


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        None,
        5,
        {"x": source("tcp://*:1")},
        {"0": 5},
        {"0": source("tcp://*:1", publisher="null")},
        {"1000": source("tcp://*:1")},
    ],
)
def test_no_source(answer: Any) -> None:
    assert described(answer, "h") == ()


def test_an_ipv6_host_is_bracketed_and_no_buffer_is_no_replay() -> None:
    (one,) = described({"0": source("tcp://*:5", "tcp://*:6", buffer_steps=0)}, "::1")
    assert one == EventEndpoint(0, "tcp://[::1]:5")


@pytest.mark.parametrize(
    "fields",
    [
        {"endpoint": "10.0.0.1:5557"},
        {"endpoint": "tcp://h:5557", "replay_endpoint": "h:1"},
        {"endpoint": "tcp://h:0"},
        {"endpoint": "tcp://h:65535", "data_parallel_ranks": 2},
    ],
)
def test_wrong_settings_are_said_to_be_wrong(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must look like tcp://HOST:PORT"):
        configured(KvSource(**fields))


def test_the_settings() -> None:
    given = KvSource(endpoint="tcp://h:5", replay_endpoint="tcp://h:15", data_parallel_ranks=2)
    assert configured(given) == (
        EventEndpoint(0, "tcp://h:5", "tcp://h:15"),
        EventEndpoint(1, "tcp://h:6", "tcp://h:16"),
    )
    assert configured(KvSource(endpoint="tcp://*:5", bind=True)) == (
        EventEndpoint(0, "tcp://*:5", bind=True),
    )


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, msgspec.json.encode({"0": source("tcp://*:5561", topic="t" * 5000)}), 1),
        (200, b"{}", 0),
        (404, b"", 0),
        (405, b"", 0),
        (500, b"", None),
        (200, b"{", None),
        (200, b"[" * 100_000 + b"]" * 100_000, None),
    ],
)
async def test_what_a_replica_says_comes_in_pieces_or_not_at_all(
    status: int, body: bytes, found: int | None
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)))
        for at in range(0, len(body), 1000):
            writer.write(body[at : at + 1000])
            await writer.drain()
            await asyncio.sleep(0)  # a turn of the loop for who reads
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with aiohttp.ClientSession() as session, server:
        said = await discover(session, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert (None if said is None else len(said)) == found

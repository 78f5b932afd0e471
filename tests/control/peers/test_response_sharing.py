"""Responses that replicas store: every gateway of a fleet knows where they are, and whose."""

import asyncio
import json
from pathlib import Path

import pytest

from bench.tools.store_server import StoreServer
from tests.control.test_supervisor import Gateway
from tests.faults.gateways import gateways
from tests.gateway.test_response_owners import KEYS, A, B, head
from tests.raw import RESPONSES, Client, get, json_bytes, post
from tests.stores import needs_store, store
from tokenlane.config.settings import ControlSettings
from tokenlane.control.fleet_table import FleetTable
from tokenlane.control.peers.peer_message import Home, replica_key
from tokenlane.control.peers.response_sharing import BATCH_COUNT, ResponseSharing

__all__ = ["store"]
URLS = ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
KEY_OF_FIRST = replica_key("10.0.0.1:8000")


def sharing(urls: list[str], wait_s: float = 0.05) -> tuple[ResponseSharing, dict[int, int]]:
    """A gateway with these replicas, and their slots."""
    table = FleetTable(urls, ControlSettings())
    return ResponseSharing(table, wait_s), {replica_key(one.id): one.slot for one in table.replicas}


async def found(at: ResponseSharing, name: str) -> tuple[int, str]:
    told: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
    at.find(name, lambda slot, tenant: told.set_result((slot, tenant)))
    return await told


def everything(at: ResponseSharing) -> list[Home]:
    told: list[Home] = []
    while due := at.due():
        assert len(due) <= BATCH_COUNT
        told += due
    return told


async def test_slots_may_differ_and_owners_do_not() -> None:
    (one, _), (other, slots) = sharing(URLS), sharing(URLS[::-1])
    one.made("r1", 0, "a")
    told = everything(one)
    assert told == [("r1", KEY_OF_FIRST, "a")]
    other.heard(told, slots)
    assert await found(other, "r1") == (1, "a")
    # Who tells of a response under the name of another's gets no part of it.
    other.heard([("r1", KEY_OF_FIRST, "b")], slots)
    assert await found(other, "r1") == (1, "a")
    # A replica that is not ours.
    other.heard([("r2", 1, "a")], slots)
    assert await found(other, "r2") == (-1, "")


async def test_it_is_told_once_and_again_to_who_is_new() -> None:
    one, _ = sharing(URLS)
    made: list[Home] = [(f"r{number}", KEY_OF_FIRST, "") for number in range(2 * BATCH_COUNT + 1)]
    for name, _, tenant in made:
        one.made(name, 0, tenant)
    assert everything(one) == made
    assert not one.due()
    one.again()
    assert everything(one) == made


async def test_news_on_their_way_are_waited_for() -> None:
    one, slots = sharing(URLS)
    asked = asyncio.get_running_loop().create_task(found(one, "r1"))
    await asyncio.sleep(0)
    assert not asked.done()
    one.heard([("r1", KEY_OF_FIRST, "a")], slots)
    assert await asked == (0, "a")


async def test_alone_nobody_waits_and_nothing_is_kept_to_tell() -> None:
    one, _ = sharing(URLS, wait_s=0.0)
    one.made("r1", 0, "a")
    assert not one.due()
    told: list[tuple[int, str]] = []
    one.find("r1", lambda *said: told.append(said))
    one.find("r2", lambda *said: told.append(said))
    assert told == [(0, "a"), (-1, "")]


async def status(gateway: Gateway, name: str, key: str) -> int:
    client = await Client.connect(gateway.port)
    try:
        return (await client.ask(get(f"{RESPONSES}/{name}", head(key)), "GET")).status
    finally:
        client.close()


@pytest.mark.slow
@needs_store
async def test_a_response_is_there_at_every_gateway(store: StoreServer, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    keys = [{"digest": one.digest, "tenant": one.tenant} for one in KEYS]
    file.write_text(json.dumps({"auth": {"keys": keys}}))
    flags = ("--config", str(file))
    keeping = ("--store-responses", "true")
    body = json_bytes({"model": "demo", "input": "hello", "max_output_tokens": 1})
    with gateways(2, store.url, *flags, more=keeping) as fleet:
        one, other = fleet.gateways
        await fleet.all_seen(one, other)
        client = await Client.connect(one.port)
        name = (await client.ask(post(RESPONSES, body, head(A)))).json["id"]
        client.close()
        assert await status(other, name, A) == 200
        assert await status(other, name, B) == 404
        # Who comes later is told, too.
        argv = ("serve", "--backend", *fleet.replicas, "--fleet-store", store.url, *flags)
        with Gateway(*argv, "--tokens-discover", "false") as late:
            await fleet.all_seen(one, other, late)
            assert await status(late, name, A) == 200
            assert await status(late, name, B) == 404

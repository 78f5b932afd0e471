"""`tokenlane doctor` on the store, the clocks and the versions."""

import asyncio

import pytest

from bench.tools.store_server import StoreServer
from tests.stores import needs_store, store
from tokenlane import __version__
from tokenlane.cli.doctor_fleet import check_fleet, judge
from tokenlane.config.settings import FleetSettings
from tokenlane.control.peers.peer_message import PeerMessage, encode
from tokenlane.control.peers.store_client import StoreClient
from tokenlane.runtime.ports import free_ports

__all__ = ["store"]


def whole(name: str, version: str, sent_s: float) -> bytes:
    return encode(PeerMessage(name, whole=True, name=name, version=version, sent_s=sent_s))


def judged(entries: list[tuple[float, bytes]], now_s: float) -> tuple[list[str], list[str]]:
    fine: list[str] = []
    warned: list[str] = []
    judge(1000.0, entries, now_s, fine.append, warned.append)
    return fine, warned


def test_all_is_well() -> None:
    entries = [(999.0, whole("a:1", __version__, 999.1)), (999.5, whole("b:1", __version__, 999.4))]
    assert judged(entries, 1000.2) == (
        ["clocks: within 0.20 s of the store's", "gateways: a:1, b:1"], [],
    )  # fmt: skip


def test_what_could_be_better() -> None:
    entries = [
        (990.0, whole("long gone:1", "0.0", 1.0)),
        (999.0, whole("a:1", "0.0.9", 1004.0)),
        (999.1, b"hello"),
    ]
    fine, warned = judged(entries, 997.5)
    assert fine == ["gateways: a:1"]
    assert warned == [
        "clocks: this machine is 2.5 s behind the store; is NTP running there?",
        "clocks: a:1 is 5.0 s ahead of the store; is NTP running there?",
        "gateways: some messages are of another format; upgrade the older ones soon",
        f"gateways: a:1 runs 0.0.9, this is {__version__}",
    ]


@pytest.mark.slow
@needs_store
def test_a_store_is_asked(store: StoreServer) -> None:
    settings = FleetSettings(store=store.url)

    async def speak() -> None:
        client = StoreClient(settings)
        await client.exchange(whole("a:1", __version__, 0.0))
        await client.close()

    asyncio.run(speak())
    fine: list[str] = []
    warned: list[str] = []
    check_fleet(settings, fine.append, warned.append)
    assert fine[0].startswith(f"store: {store.url} answers, connected in ")
    assert fine[-1] == "gateways: a:1"
    assert [line.split(" is ")[0] for line in warned] == ["clocks: a:1"]


def test_no_store_and_none_that_answers() -> None:
    said: list[str] = []
    check_fleet(FleetSettings(), said.append, said.append)
    assert said == []
    url = f"redis://127.0.0.1:{free_ports(1)}"
    check_fleet(FleetSettings(store=url), said.append, said.append)
    assert len(said) == 1
    assert said[0].startswith("store: ")
    assert said[0].endswith("; without it each gateway goes by its own load (fleet.store)")

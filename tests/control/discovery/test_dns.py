"""Names resolved by a real resolver from a small server that speaks DNS."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from tokenlane.config.settings import DiscoverySettings
from tokenlane.control.discovery.dns import Dns, resolver
from tokenlane.errors import ConfigError

NAME = "vllm.ns.svc.cluster.local."


class Server(asyncio.DatagramProtocol):
    """records: by name and type, their texts. rcode: what it says to everything instead."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.rcode = dns.rcode.NOERROR
        self.silent: set[str] = set()
        self.asked = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no subclass

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.asked += 1
        asked = dns.message.from_wire(data)
        question = asked.question[0]
        name, kind = question.name.to_text(), dns.rdatatype.to_text(question.rdtype)
        if kind in self.silent:
            return
        answer = dns.message.make_response(asked)
        answer.set_rcode(self.rcode)
        if self.rcode == dns.rcode.NOERROR:
            texts = self.records.get((name, kind), [])
            if texts:
                answer.answer.append(dns.rrset.from_text(name, 0, "IN", kind, *texts))
            elif not any(known == name for known, _ in self.records):
                answer.set_rcode(dns.rcode.NXDOMAIN)
        assert self._transport is not None
        self._transport.sendto(answer.to_wire(), addr)


class Scene:
    """A server, a source that asks it, and what the source says."""

    def __init__(self, server: Server, settings: DiscoverySettings, text: str) -> None:
        self.server = server
        self.words: asyncio.Queue[list[str] | None] = asyncio.Queue()
        self.source = Dns(text, settings)

    def want(self, urls: Iterable[str] | None) -> None:
        self.words.put_nowait(None if urls is None else list(urls))

    async def until(self, wanted: list[str] | None) -> list[list[str] | None]:
        """What was said up to this word."""
        said = []
        async with asyncio.timeout(20):
            while True:
                said.append(await self.words.get())
                if said[-1] == wanted:
                    return said


@asynccontextmanager
async def resolving(text: str = f"http://{NAME[:-1]}:8000") -> AsyncIterator[Scene]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(Server, ("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    settings = DiscoverySettings(
        dns_servers=(f"127.0.0.1:{port}",), dns_interval_s=0.02, dns_deadline_s=0.1
    )
    scene = Scene(server, settings, text)
    server.records[NAME, "A"] = ["10.0.0.1", "10.0.0.2"]
    task = loop.create_task(scene.source.run(scene.want))
    try:
        yield scene
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait((task,))
        transport.close()


ONE, TWO, SIX = "http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://[fd00::1]:8000"


async def test_addresses_of_both_families_come_and_go() -> None:
    async with resolving() as scene:
        await scene.until([ONE, TWO])
        scene.server.records[NAME, "AAAA"] = ["fd00::1"]
        await scene.until([ONE, TWO, SIX])
        scene.server.records[NAME, "A"] = ["10.0.0.2"]
        before = await scene.until([TWO, SIX])
        assert [ONE, TWO, SIX] in before[:-1]  # not with the first answer that lacks it


@pytest.mark.parametrize("how", ["nxdomain", "servfail", "empty", "one family is silent"])
async def test_a_name_that_vanishes_for_a_moment_takes_nobody_out(how: str) -> None:
    async with resolving() as scene:
        await scene.until([ONE, TWO])
        if how == "nxdomain":
            scene.server.records = {}
        elif how == "servfail":
            scene.server.rcode = dns.rcode.SERVFAIL
        elif how == "empty":
            scene.server.records = {(NAME, "TXT"): ['"x"']}
        else:
            scene.server.records[NAME, "A"] = ["10.0.0.1"]
            scene.server.silent = {"AAAA"}
        asked = scene.server.asked
        async with asyncio.timeout(20):
            while scene.server.asked < asked + 4:
                assert await scene.words.get() in (None, [ONE, TWO])
        scene.server.silent, scene.server.rcode = set(), dns.rcode.NOERROR
        scene.server.records = {(NAME, "A"): ["10.0.0.2", "10.0.0.9"]}
        assert set(map(str, await scene.until([TWO, "http://10.0.0.9:8000"])))


async def test_srv_records_say_hosts_and_ports() -> None:
    async with resolving("http://_http._tcp.vllm.ns.svc.cluster.local") as scene:
        scene.server.records["_http._tcp." + NAME, "SRV"] = [
            f"0 50 8000 vllm-0.{NAME}",
            f"0 50 9000 vllm-1.{NAME}",
        ]
        hosts = [f"http://vllm-{number}.{NAME[:-1]}" for number in range(2)]
        await scene.until([f"{hosts[0]}:8000", f"{hosts[1]}:9000"])


def test_servers() -> None:
    texts = ("10.0.0.1", "10.0.0.2:5353", "fd00::10", "[fd00::11]", "[fd00::12]:5353")
    made = resolver(texts)
    assert made.nameservers == ["10.0.0.1", "10.0.0.2", "fd00::10", "fd00::11", "fd00::12"]
    assert made.nameserver_ports == {"10.0.0.2": 5353, "fd00::12": 5353}


@pytest.mark.parametrize(
    "text",
    ["nobody", "127.0.0.1:dns", "127.0.0.1:99999", "127.0.0.1/24", "[fd00::10", "fd00::10:x", ""],
)
def test_what_is_no_server(text: str) -> None:
    with pytest.raises(ConfigError, match=r"discovery\.dns_servers"):
        resolver([text])

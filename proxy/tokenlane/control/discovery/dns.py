"""DNS: names resolved again and again, as those of headless services.

Invariants:
- A name that cannot be resolved now keeps the replicas it had.
- Both address families are asked; if one of them fails, the answer is not known.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

import dns.asyncresolver
import dns.exception
import dns.inet
import dns.rdatatype
import dns.resolver

from tokenlane.config.settings import DiscoverySettings
from tokenlane.control.discovery.dns_names import Absences, Target, target
from tokenlane.errors import ConfigError
from tokenlane.runtime.ports import split_url, url_of

Want = Callable[[Iterable[str] | None], object]

log = logging.getLogger("discovery")


def resolver(servers: Iterable[str]) -> dns.asyncresolver.Resolver:
    """servers: HOST or HOST:PORT, IPv6 with a port in brackets; without any, those of the system.
    Raises ConfigError."""
    given = [_server(one) for one in servers]
    try:
        made = dns.asyncresolver.Resolver(configure=not given)
        if given:
            made.nameservers = [host for host, _ in given]
            made.nameserver_ports = {host: port for host, port in given if port is not None}
    except (dns.exception.DNSException, OSError, ValueError) as error:
        raise ConfigError(f"discovery.dns_servers: {error}") from None
    made.use_search_by_default = True
    return made


def _server(text: str) -> tuple[str, int | None]:
    """Host and port; a text that is neither is the host, and no address."""
    if dns.inet.is_address(text):
        return text, None
    parts, port = split_url("//" + text)
    return (parts.hostname or text, port) if parts.netloc == text else (text, None)


async def _addresses(by: dns.asyncresolver.Resolver, name: str) -> list[str]:
    """Of both families. Raises DNSException where one is not known."""
    found: list[str] = []
    for kind in (dns.rdatatype.A, dns.rdatatype.AAAA):
        try:
            answer = await by.resolve(name, kind)
        except dns.resolver.NoAnswer:
            continue
        found += [record.address for record in answer]
    return found


async def resolve(by: dns.asyncresolver.Resolver, one: Target) -> set[str]:
    """The URLs behind a name. Raises DNSException."""
    if one.port is not None:
        return {url_of(host, one.port, one.scheme) for host in await _addresses(by, one.name)}
    answer = await by.resolve(one.name, dns.rdatatype.SRV)
    return {
        url_of(record.target.to_text(omit_final_dot=True), record.port, one.scheme)
        for record in answer
    }


class Dns:
    """One name."""

    def __init__(self, text: str, settings: DiscoverySettings) -> None:
        """Raises ConfigError."""
        self._target = target(text)
        self._interval_s = settings.dns_interval_s
        self._resolver = resolver(settings.dns_servers)
        self._resolver.lifetime = settings.dns_deadline_s
        self._absences = Absences(settings.dns_absence_limit_count)
        self._failing = False

    async def run(self, want: Want) -> None:
        """Until cancelled."""
        while True:
            try:
                found = await resolve(self._resolver, self._target)
            except (dns.exception.DNSException, OSError) as error:
                want(None)
                if not self._failing:
                    log.warning("%s cannot be resolved: %s", self._target.name, error)
                self._failing = True
            else:
                want(self._absences.answered(found))
                if self._failing:
                    log.info("%s is resolved again", self._target.name)
                self._failing = False
            await asyncio.sleep(self._interval_s)

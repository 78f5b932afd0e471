"""Endpoint slices of a Kubernetes service, and the replicas in them. Pure.

Invariants:
- Only ready endpoints that are not terminating are replicas; a ready condition that is not said
  means ready, as Kubernetes has it.
- A pod with addresses of both families is one replica: where there are IPv4 slices, they count.
- What an event says of a slice replaces all that was known of it.
"""

from collections.abc import Iterable

import msgspec

from tokenlane.runtime.ports import url_of


class Metadata(msgspec.Struct):
    """`continue_`: more of a list is to be had by it."""

    name: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    continue_: str = msgspec.field(default="", name="continue")


class Conditions(msgspec.Struct):
    """None: not said."""

    ready: bool | None = None
    terminating: bool | None = None


class Endpoint(msgspec.Struct):
    """A pod. addresses: all of the same pod; the first counts."""

    addresses: list[str] = []
    conditions: Conditions = msgspec.field(default_factory=Conditions)


class Port(msgspec.Struct):
    """name: empty where it has none."""

    name: str | None = None
    port: int | None = None


class Slice(msgspec.Struct):
    """An EndpointSlice of discovery.k8s.io/v1, as far as it matters here."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    address_type: str = msgspec.field(default="IPv4", name="addressType")
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


class Listed(msgspec.Struct):
    """An answer to a list."""

    metadata: Metadata
    items: list[Slice] | None = None


class Event(msgspec.Struct):
    """A line of a watch. object: a slice, or a Status where type is ERROR."""

    type: str
    object: msgspec.Raw


class Status(msgspec.Struct):
    """What went wrong with a watch. code: an HTTP status."""

    code: int = 0
    message: str = ""


def _port(ports: Iterable[Port], wanted: str) -> int | None:
    """By name or number; without either the first one."""
    for one in ports:
        if one.port is not None and wanted in ("", one.name, str(one.port)):
            return one.port
    return None


def backends(slices: Iterable[Slice], scheme: str, port: str) -> list[str]:
    """The URLs of the replicas. port: name or number; empty: the first one."""
    known = list(slices)
    kind = "IPv4" if any(one.address_type == "IPv4" for one in known) else "IPv6"
    found = set()
    for one in known:
        number = _port(one.ports or (), port)
        if one.address_type != kind or number is None:
            continue
        for endpoint in one.endpoints or ():
            ready = endpoint.conditions.ready is not False and not endpoint.conditions.terminating
            if ready and endpoint.addresses:
                found.add(url_of(endpoint.addresses[0], number, scheme))
    return sorted(found)

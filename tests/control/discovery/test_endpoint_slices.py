"""Endpoint slices, and the replicas in them."""

from typing import Any

import msgspec
import pytest

from tokenlane.control.discovery.endpoint_slices import Slice, backends


def slices(*values: dict[str, Any]) -> list[Slice]:
    return msgspec.convert(list(values), list[Slice])


def one(*endpoints: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "s", "resourceVersion": "1"},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}, {"name": "m", "port": 9000}],
        "endpoints": list(endpoints),
        **more,
    }


def pod(address: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions, "nodeName": "n"}


READY = pod("10.0.0.1", ready=True, serving=True, terminating=False)


@pytest.mark.parametrize(
    ("value", "port", "urls"),
    [
        (one(READY), "", ["http://10.0.0.1:8000"]),
        (one(READY), "m", ["http://10.0.0.1:9000"]),
        (one(READY), "9000", ["http://10.0.0.1:9000"]),
        (one(READY), "nope", []),
        (one(READY, ports=[]), "", []),
        (one(READY, ports=[{"name": "", "port": None}]), "", []),  # all ports: none is named
        (one(pod("10.0.0.2")), "", ["http://10.0.0.2:8000"]),  # not said: ready
        (one(pod("10.0.0.2", ready=False)), "", []),
        (one(pod("10.0.0.2", ready=True, terminating=True)), "", []),
        (one(pod("10.0.0.2", ready=False, serving=True, terminating=True)), "", []),
        ({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": None}, "", []),
        (one(pod("fd00::1"), addressType="IPv6"), "", ["http://[fd00::1]:8000"]),
        (one(pod("a.example"), addressType="FQDN"), "", []),
    ],
)
def test_who_is_a_replica(value: dict[str, Any], port: str, urls: list[str]) -> None:
    assert backends(slices(value), "http", port) == urls


def test_a_pod_of_both_families_is_one_replica() -> None:
    both = slices(one(READY), one(pod("fd00::1"), addressType="IPv6"))
    assert backends(both, "https", "") == ["https://10.0.0.1:8000"]

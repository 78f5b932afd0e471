"""What one worker routed the others know: real workers, the supervisor between them."""

import re
from functools import partial

import pytest

from tests.control.test_supervisor import Gateway, until
from tokenlane.routing.index import PrefixIndex
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess

WORKERS = 3
PROMPTS = 48
BLOCKS, BLOCK_TOKENS = 4, 16

pytestmark = pytest.mark.slow


def index_bytes(gateway: Gateway) -> float:
    """Of the indexes of all workers."""
    page = gateway.ask("/metrics", admin=True)[1].decode()
    found = re.search(r'^tokenlane_memory_bytes\{part="index-own"\} (\S+)$', page, re.MULTILINE)
    return float(found[1]) if found is not None else 0.0


def started_s(gateway: Gateway) -> float:
    """Of the replica's process; 0 while it is down, or has not said."""
    [replica] = gateway.status()["replicas"]
    return float(replica["started_s"]) if replica["up"] else 0.0


def routed(gateway: Gateway, number: int) -> bool:
    """Whether a prompt, on a connection of its own, found a replica."""
    ids = [1 + 7 * number + at for at in range(BLOCKS * BLOCK_TOKENS)]
    body = {"model": "demo", "prompt": ids, "max_tokens": 1}
    return gateway.ask("/v1/completions", body)[0] == 200


def route(gateway: Gateway) -> None:
    """Each prompt once, as soon as there is a replica."""
    for number in range(PROMPTS):
        until(partial(routed, gateway, number))


def test_each_worker_knows_what_all_of_them_routed() -> None:
    index = PrefixIndex(1000)
    for number in range(PROMPTS):
        hashes = [number * BLOCKS + at for at in range(BLOCKS)]
        index.insert(0, b"".join(one.to_bytes(8, "little") for one in hashes))
    with FleetProcess(1, free_ports(1)) as fleet:
        argv = ("--backend", fleet.urls[0], "--policy", "affinity", "--workers", str(WORKERS))
        with Gateway("serve", *argv) as gateway:
            route(gateway)
            until(lambda: index_bytes(gateway) == WORKERS * index.size_bytes)
            # Another process with an empty cache.
            until(lambda: started_s(gateway) > 0)
            before_s = started_s(gateway)
            fleet.__exit__()
            fleet.__enter__()
            until(lambda: started_s(gateway) > before_s)
            # A worker may hear of it only now, and forget what it routed a moment ago.
            for _ in range(2):
                route(gateway)
            until(lambda: index_bytes(gateway) == WORKERS * index.size_bytes)

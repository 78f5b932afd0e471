"""One replica of several slows down: a real Prometheus with the shipped rules names it."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.loads import workload
from bench.loads.workload import CHAT
from bench.tools.client import fetch
from bench.tools.prometheus import Prometheus, available
from bench.tools.systems import Proxy, gateway
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="prometheus is not installed (Debian: prometheus)"),
]
# What a person who has to be told waits: the alert's window and its patience are shorter.
NAMED_WITHIN_S = 60.0
SIMULATED = ("--token-interval-s", "0.01", "--prefill-tokens-per-s", "20000")
CLIENTS = 8


@contextmanager
def load(proxy: Proxy) -> Iterator[None]:
    """Streams of new prompts, from so many clients, as long as the context."""
    stop = threading.Event()

    def ask(client: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            messages = [("user", f"{client} {number} {workload.text(400, number)}")]
            fetch(proxy.port, CHAT, workload.chat(messages, stream=True))

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def named(prometheus: Prometheus) -> set[str]:
    """The replicas that the alert names now."""
    firing = prometheus.query('ALERTS{alertname="TokenlaneReplicaSlow",alertstate="firing"}')
    return {one.labels["replica"] for one in firing}


@pytest.mark.timeout(180)
def test_a_slow_replica_is_named_within_a_minute() -> None:
    port = free_ports(3)
    with FleetProcess(3, port, SIMULATED) as fleet, gateway(fleet.urls, None, plain=True) as proxy:
        assert proxy.admin_port is not None
        with Prometheus([proxy.admin_port], 1.0) as prometheus, load(proxy):
            prometheus.wait_scrapes(10)
            assert named(prometheus) == set()
            slow = {"kind": "slow", "factor": 5, "for_s": 2 * NAMED_WITHIN_S}
            fetch(port + 1, "/sim/fault", json.dumps(slow).encode())
            until_s = time.monotonic() + NAMED_WITHIN_S
            while not named(prometheus) and time.monotonic() < until_s:
                prometheus.wait_scrape()
            assert named(prometheus) == {f"127.0.0.1:{port + 1}"}

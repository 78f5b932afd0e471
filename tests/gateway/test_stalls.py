"""Stalls of a whole gateway, from a planted one to the admin port."""

import json
from typing import Any

import pytest

from bench.tools.planted import PLANTED_GATEWAY, VARIABLE
from tests.control.test_supervisor import Gateway, until
from tests.held import told
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.tokens.demo import demo_folder

pytestmark = pytest.mark.slow


def counter(gateway: Gateway, name: str, cause: str) -> float:
    """One cause's child of a counter, 0 before there is one."""
    for line in gateway.ask("/metrics", admin=True)[1].decode().splitlines():
        if line.startswith(f'{name}{{cause="{cause}"}} '):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def test_a_planted_stall_is_shown_with_its_cause_and_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "inspect:sleep:0.2:2")
    with FleetProcess(1, free_ports(1)) as fleet:
        argv = ["serve", "--backend", fleet.urls[0], "--tokenizer", f"demo={demo_folder()}"]
        with Gateway(*argv, program=PLANTED_GATEWAY) as gateway:

            def stalls() -> list[dict[str, Any]]:
                found = json.loads(gateway.ask("/stalls", admin=True)[1])["stalls"]
                return [one for one in found if one["cause"] == "inspect"]

            # The first two make ready, then every second is planted.
            assert [gateway.chat() for _ in range(8)] == [200] * 8
            until(lambda: len(stalls()) >= 2)
            stall = stalls()[0]
            assert stall["length_s"] > 0.15
            assert stall["worker"] == 0
            assert stall["in_hand_count"] == 1
            [request] = stall["in_hand"]
            assert request["stage"] == "read"
            assert len(request["request_id"]) > 10
            page = gateway.ask("/stalls?format=html", admin=True)[1].decode()
            assert "<h1>Stalls</h1>" in page
            assert request["request_id"] in page

            # The counters are the worker's own; they are there without delay.
            count = counter(gateway, "tokenlane_loop_stalls_total", "inspect")
            assert count >= 2
            assert counter(gateway, "tokenlane_loop_stall_cause_seconds_total", "inspect") > 0.3

            def monitored() -> bool:
                lateness = json.loads(gateway.ask("/stalls", admin=True)[1])["workers"]
                return any(row["max_s"] > 0.15 and row["beats"] > 10 for row in lateness)

            until(monitored)
            assert told(gateway.admin_port).refusal() is None  # asleep, it used no CPU
            assert gateway.stop() == 0


def test_a_spec_that_is_not_understood_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "inspect:nap:0.2:2")
    with FleetProcess(1, free_ports(1)) as fleet:
        with Gateway("serve", "--backend", fleet.urls[0], program=PLANTED_GATEWAY) as gateway:
            assert gateway.process.wait(30) == 1
            assert gateway.process.stderr is not None
            assert "STAGE:KIND:SECONDS:EVERY" in gateway.process.stderr.read()

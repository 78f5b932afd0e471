"""A worker that stands still for good is replaced, and its share of new connections is served."""

import os
import signal

import pytest

from tests.control.test_supervisor import Gateway, until
from tests.faults.gateways import last_words, metric
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess

pytestmark = pytest.mark.slow


@pytest.mark.row("O12")
def test_a_worker_that_hangs_is_replaced() -> None:
    with FleetProcess(1, free_ports(1)) as fleet:
        argv = ("serve", "--backend", fleet.urls[0], "--workers", "2")
        with Gateway(*argv, program="tests.faults.impatient") as gateway:
            before = [worker["pid"] for worker in gateway.status()["workers"]]
            os.kill(before[0], signal.SIGSTOP)

            def back() -> bool:
                worker = gateway.status()["workers"][0]
                return bool(worker["state"] == "ready" and worker["pid"] != before[0])

            until(back)
            # Each worker has half of them.
            assert [gateway.ask("/health")[0] for _ in range(20)] == [200] * 20
            workers = gateway.status()["workers"]
            assert [worker["restarts"] for worker in workers] == [1, 0]
            assert workers[1]["pid"] == before[1]
            assert metric(gateway, "tokenlane_worker_restarts_total") == 1
            said = last_words(gateway)
            assert "worker 0 hangs: it has said nothing for 5 s, and is killed" in said
            assert "worker 1 hangs" not in said


@pytest.mark.row("O7")
def test_a_worker_that_drains_by_itself_is_none_that_hangs() -> None:
    pace = ("--token-interval-s", "0.05")
    with FleetProcess(1, free_ports(1), pace) as fleet:
        # A busy machine makes stalls, and each is a sign of life.
        argv = ("serve", "--backend", fleet.urls[0], "--stalls-threshold-s", "5")
        with Gateway(*argv, program="tests.faults.impatient") as gateway:
            body = {"model": "demo", "prompt": "Say a lot", "max_tokens": 160, "stream": True}
            connection = gateway.send("/v1/completions", body)  # for 8 s
            response = connection.getresponse()
            [worker] = gateway.status()["workers"]
            os.kill(worker["pid"], signal.SIGTERM)
            assert response.read().endswith(b"data: [DONE]\n\n")
            connection.close()
            assert "hangs" not in last_words(gateway)

"""KV events through the whole gateway: real processes, from a simulated cache to a prediction."""

import json
import os
import signal
import time
import urllib.request
from random import Random

import pytest

from tests.control.test_supervisor import Gateway, until
from tokenlane.routing.pending import EPOCH_S, LAG_S
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.tokens.demo import demo_folder

pytestmark = pytest.mark.slow

PROMPTS = 60
BLOCK = 16


def ids(name: int) -> list[int]:
    return [1 + name] * (BLOCK * (5 + name % 20)) + [200 + name]


def send(gateway: Gateway, name: int) -> tuple[int, int]:
    """Predicted and actual cached tokens."""
    body = {"model": "demo", "prompt": ids(name), "max_tokens": 1}
    connection = gateway.send("/v1/completions", body)
    try:
        answer = connection.getresponse()
        usage = json.loads(answer.read())["usage"]
        predicted = int(answer.headers["x-tokenlane-cached-tokens"])
        return predicted, usage["prompt_tokens_details"]["cached_tokens"]
    finally:
        connection.close()


def metric(gateway: Gateway, name: str, *words: str) -> float:
    page = gateway.ask("/metrics", admin=True)[1].decode()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if line.startswith(name + "{") and all(word in line for word in words)
    )


def cached_blocks(fleet: FleetProcess) -> int:
    """What the simulated caches hold."""
    total = 0
    for url in fleet.urls:
        with urllib.request.urlopen(f"{url}/sim/stats") as answer:
            total += json.load(answer)["cached_blocks"]
    return total


def compare(gateway: Gateway, fleet: FleetProcess, random: Random) -> None:
    """Predictions against answers, each once the events of the one before are here."""
    wrong, tokens = 0, 0
    for name in random.sample(range(PROMPTS), 16):
        until(lambda: metric(gateway, "tokenlane_kv_blocks", "gpu") == cached_blocks(fleet))
        time.sleep(0.05)  # from the control plane to the worker
        predicted, actual = send(gateway, name)
        wrong += predicted != actual
        tokens += actual
    assert tokens > 300
    assert wrong <= 1  # a worker that was not given a turn for so long


def test_predictions_are_what_the_caches_hold_also_by_a_new_worker() -> None:
    random = Random(4)
    flags = ("--kv-events", "maps", "--cache-blocks", "200")
    with FleetProcess(2, free_ports(2), flags) as fleet:
        backends = [word for url in fleet.urls for word in ("--backend", url)]
        with Gateway("serve", *backends, "--tokenizer", f"demo={demo_folder()}") as gateway:
            complete = ("tokenlane_kv_event_standing_info", 'standing="complete"')
            until(lambda: metric(gateway, *complete) == 2)
            for _ in range(300):
                send(gateway, random.randrange(PROMPTS))
            assert metric(gateway, "tokenlane_kv_events_total", "BlockRemoved") > 20
            assert metric(gateway, "tokenlane_kv_event_messages_lost_total") == 0
            time.sleep(EPOCH_S + LAG_S + 1.2)  # nothing is on its way any more
            compare(gateway, fleet, random)

            [worker] = gateway.status()["workers"]
            os.kill(worker["pid"], signal.SIGKILL)
            until(
                lambda: (
                    gateway.status()["workers"][0]["restarts"] == 1
                    and gateway.status()["workers"][0]["state"] == "ready"
                )
            )
            until(lambda: metric(gateway, "tokenlane_memory_bytes", 'part="index-events"') > 0)
            compare(gateway, fleet, random)
            assert gateway.stop() == 0

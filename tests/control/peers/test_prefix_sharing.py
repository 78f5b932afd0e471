"""What one gateway routed is known to the others, where no KV events say it: real gateways, a real
store, replicas that do and do not publish."""

import json

import pytest

from bench.tools.store_server import StoreServer
from tests.control.test_supervisor import Gateway
from tests.faults.gateways import Gateways, gateways
from tests.stores import needs_store, store
from tokenlane.tokens.demo import demo_folder

pytestmark = [pytest.mark.slow, needs_store]
__all__ = ["store"]

TOKENIZER = ("--tokenizer", f"demo={demo_folder()}")
STORY = "Once there were two gateways in front of the same replicas. " * 40


def matched(gateway: Gateway) -> tuple[str, int]:
    """Which replica a gateway would choose for the story, and how much it thinks is there."""
    body = {"model": "demo", "messages": [{"role": "user", "content": STORY}]}
    status, told = gateway.ask("/explain", body, admin=True)
    assert status == 200, told
    (chosen,) = [row for row in json.loads(told)["replicas"] if row["chosen"]]
    return chosen["replica"], chosen["matched_tokens"]


def send(fleet: Gateways) -> str:
    """Send the story by the first gateway; return the replica that got it."""
    body = {"model": "demo", "messages": [{"role": "user", "content": STORY}], "max_tokens": 1}
    connection = fleet.gateways[0].send("/v1/chat/completions", body)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()
    connection.close()
    return str(answer.headers["x-tokenlane-replica"])


async def test_a_prefix_that_one_gateway_routed_is_known_to_the_other(store: StoreServer) -> None:
    with gateways(2, store.url, *TOKENIZER) as fleet:
        await fleet.all_seen(*fleet.gateways)
        assert matched(fleet.gateways[1])[1] == 0
        replica = send(fleet)
        await fleet.until(lambda: matched(fleet.gateways[1])[1] > 0)
        assert matched(fleet.gateways[1]) == matched(fleet.gateways[0])
        assert matched(fleet.gateways[1])[0] == replica


async def test_nothing_is_told_where_it_is_switched_off(store: StoreServer) -> None:
    off = ("--fleet-prefix-limit-bytes-per-s", "0")
    with gateways(2, store.url, *TOKENIZER, *off) as fleet:
        await fleet.all_seen(*fleet.gateways)
        send(fleet)
        # Told before this load would be, if it were.
        endless = {"model": "demo", "prompt": "endless", "max_tokens": 4000}
        connection = fleet.gateways[0].send("/v1/completions", endless)
        await fleet.until(lambda: fleet.of_others(fleet.gateways[1]) == 1)
        assert matched(fleet.gateways[1])[1] == 0
        connection.close()

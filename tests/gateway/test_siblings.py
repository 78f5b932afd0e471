"""What one parent waits for: who is next in the gateway's queue, and where a burst goes."""

import asyncio
import json
from collections import Counter, defaultdict
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.raw import TEXT, Client, Peer, Upstream, ok, post, until
from tests.support import Bench, demo_tokenizer, gateway
from tokenlane.admission.parents import Parents
from tokenlane.admission.policy import Admission, Ticket
from tokenlane.config.settings import AdmissionSettings, RoutingSettings, Settings
from tokenlane.routing.lease import Siblings
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet

LEAD_S = 5.0


def admission(lead_s: float = LEAD_S) -> Admission:
    limits = AdmissionSettings(concurrency_limit_count=1, sibling_lead_s=lead_s)
    return Admission(limits, {})


def order(asked: list[tuple[float, int]], lead_s: float = LEAD_S) -> list[int]:
    """Which of these (time, parent) is served when, by number; the place is taken before."""
    made = admission(lead_s)
    running, _ = made.ask("", 0, 0.0)
    numbers: dict[Ticket, int] = {}
    for number, (at_s, parent) in enumerate(asked):
        ticket, _ = made.ask("", 0, at_s, parent)
        numbers[ticket] = number
    served = []
    while admitted := made.leave(running, 100.0):
        [running] = admitted
        served.append(numbers[running])
    return served


def test_siblings_go_with_the_first_of_them() -> None:
    asked = [(1.0, 7), (2.0, 8), (3.0, 0), (4.0, 7), (4.5, 8)]
    assert order(asked) == [0, 3, 1, 4, 2]
    assert order(asked, lead_s=0.0) == [0, 1, 2, 3, 4]
    # No further ahead than the lead: 4 s came 1 s before, and stays before.
    assert order(asked, lead_s=1.0) == [0, 1, 2, 3, 4]
    assert order(asked, lead_s=1.5) == [0, 1, 3, 2, 4]


@hypothesis_settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 4)), max_size=30),
    st.sampled_from([0.5, 2.0, 5.0]),
)
def test_nobody_is_overtaken_by_what_comes_much_later(
    gaps: list[tuple[float, int]], lead_s: float
) -> None:
    asked: list[tuple[float, int]] = []
    for gap_s, parent in gaps:
        asked.append(((asked[-1][0] if asked else 0.0) + gap_s, parent))
    served = order(asked, lead_s)
    assert sorted(served) == list(range(len(asked)))
    for place, number in enumerate(served):
        for earlier in served[:place]:
            assert asked[earlier][0] <= asked[number][0] + lead_s + 1e-9
    # Those of one parent, and those of nobody, keep their order.
    for parent in range(5):
        mine = [number for number in served if asked[number][1] == parent]
        assert mine == sorted(mine)


def test_parents_are_forgotten() -> None:
    parents = Parents()
    assert [parents.asked(1, at_s, 5.0) for at_s in (10.0, 14.0, 88.0)] == [10.0] * 3
    for at_s in (20.0, 89.0, 90.0):
        parents.ended(1, at_s)
    assert parents.asked(1, 94.0, 5.0) == 10.0
    parents.ended(1, 94.5)
    assert parents.asked(1, 99.6, 5.0) == 99.6
    for parent in range(5000):
        parents.asked(parent, 100.0, 5.0)
        parents.ended(0, 100.0)
    assert len(parents) == 1000


def test_siblings_are_counted_while_they_are_in_flight() -> None:
    siblings = Siblings()
    for parent in (1, 1, 2):
        siblings.began(parent)
    siblings.ended(1)
    assert [siblings.count(parent) for parent in (1, 2, 3)] == [1, 1, 0]
    siblings.ended(1)
    siblings.ended(2)
    assert len(siblings) == 0


async def test_over_sockets_a_parents_requests_are_served_together() -> None:
    free = asyncio.Semaphore(0)

    async def script(peer: Peer) -> None:
        try:
            while True:
                await peer.asked()
                await free.acquire()
                await peer.send(ok())
        except (EOFError, ConnectionError):
            return

    limits = Settings(admission=AdmissionSettings(concurrency_limit_count=1))
    async with Upstream(script) as upstream, gateway(upstream.url, settings=limits) as bench:
        clients: list[Client] = []
        assert bench.gateway.admission_queue is not None
        for number, parent in enumerate(["x", "a", "b", "", "a", "b"]):
            client = await bench.client()
            clients.append(client)
            await client.send(post(TEXT, completion([number]), correlated(parent)))
            await until(partial(_taken, bench.gateway.admission_queue.admission, number + 1))
        for _ in clients:
            free.release()
        for client in clients:
            assert (await client.answer()).status == 200
        asked = [json.loads(one.body)["prompt"] for one in upstream.asked]
        assert asked == [[0], [1], [4], [2], [5], [3]]


def _taken(made: Admission, count: int) -> bool:
    return made.running + made.waiting == count


PREFIX, OWN = 1600, 160


def completion(ids: list[int]) -> bytes:
    return json.dumps({"model": "demo", "prompt": ids, "max_tokens": 1}).encode()


def correlated(parent: str) -> str:
    named = f"X-Correlation-ID: {parent}\r\n" if parent else ""
    return f"content-type: application/json\r\n{named}"


async def burst(bench: Bench, parents: dict[int, str], agents: int) -> list[tuple[int, str, int]]:
    """All sub-agents of all parents at once: parent, replica and cached tokens of each."""

    async def one(parent: int, agent: int) -> tuple[int, str, int]:
        shared = [1000 + parent] * PREFIX
        ids = [*shared, *([2000 + 100 * parent + agent] * OWN)]
        header = parents[parent]
        answer = await bench.ask(post(TEXT, completion(ids), correlated(header)))
        assert answer.status == 200
        usage: dict[str, Any] = json.loads(answer.body)["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return parent, answer.headers["x-tokenlane-replica"], cached

    return await asyncio.gather(
        *(one(parent, agent) for agent in range(agents) for parent in parents)
    )


@pytest.mark.slow
@pytest.mark.parametrize("header", ["", "task"])
async def test_a_burst_computes_what_it_shares_once_unless_spreading_is_faster(header: str) -> None:
    """Four parents keep four replicas busy, each with its own; one alone may use them all."""
    simulated = SimulatorSettings(prefill_tokens_per_s=20_000, max_model_tokens=10_000)
    settings = Settings(routing=RoutingSettings(idle_alpha=0.1))
    async with SimulatedFleet(simulated, tokenizer=demo_tokenizer()) as fleet:
        urls = await fleet.start(4)
        async with gateway(*urls, settings=settings, tokenizer=demo_tokenizer()) as bench:
            busy = await burst(bench, {one: f"{header}{one}" * bool(header) for one in range(4)}, 6)
            computed = Counter(parent for parent, _, cached in busy if cached < PREFIX)
            replicas = defaultdict(set)
            for parent, replica, _ in busy:
                replicas[parent].add(replica)
            alone = await burst(bench, {9: header}, 12)
            spread = len({replica for _, replica, _ in alone})
    assert set(computed.values()) == {1}
    assert [len(one) for one in replicas.values()] == [1] * 4
    assert len(set.union(*replicas.values())) == 4
    # In a fleet that idles otherwise, whose parent is known spreads; else it is as it is priced.
    assert spread > 1 if header else spread == 1

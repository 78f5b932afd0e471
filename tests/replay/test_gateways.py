"""Several gateways in front of one simulated fleet: who knows what, and when."""

from functools import partial

import pytest

from tests.replay.workloads import conversations
from tokenlane.config.settings import RoutingSettings
from tokenlane.replay.gateways import Gateways, GatewayShape, replay_gateways
from tokenlane.replay.run import Figures, FleetShape, replay
from tokenlane.replay.trace import MOONCAKE_BLOCK_TOKENS as BLOCK
from tokenlane.replay.trace import Request, Trace, packed
from tokenlane.routing.candidates import Eligible
from tokenlane.routing.decision import Query

FLEET = FleetShape(3, cache_blocks=200)
SETTINGS = RoutingSettings()


def test_one_gateway_without_events_decides_as_the_plain_replay_does() -> None:
    trace = conversations(40, 4, gap_s=0.3)
    alone = replay(trace, FLEET, SETTINGS)
    assert replay_gateways(trace, FLEET, GatewayShape(1, events=False), SETTINGS) == alone


@pytest.mark.parametrize("gateways", [1, 3])
def test_by_events_every_gateway_knows_what_the_caches_hold(gateways: int) -> None:
    trace = conversations(60, 4, gap_s=0.3)
    made = Gateways(GatewayShape(gateways), FLEET, BLOCK, SETTINGS)
    assert len(made.fleet.run(trace.requests, made)) == len(trace.requests)
    for slot, replica in enumerate(made.fleet.replicas):
        assert replica.cache.evicted_blocks > 0
        for router in made.routers:
            held = router.truth.replicas[slot].ranks[0].gpu
            assert len(held) == len(replica.cache)
            for request in trace.requests:
                hashes = memoryview(request.blocks).cast("Q")
                known = held.first_unknown(request.blocks, hashes, 0)
                assert known == replica.cache.match(hashes, len(hashes))


def test_what_others_have_in_flight_is_known_after_the_delay() -> None:
    made = Gateways(GatewayShape(2, 0.5, events=False), FLEET, BLOCK, SETTINGS)
    request = Request(0.0, 4 * BLOCK, 0, packed([1, 2, 3, 4]))
    query = Query(request.blocks, BLOCK, request.prompt_tokens, request.prompt_tokens)

    def seen() -> list[tuple[int, int, int]]:
        """Of each gateway: requests, tokens and blocks that it knows of, over all replicas."""
        rows = []
        for router in made.routers:
            among = router.decide(query, Eligible((0, 1, 2))).candidates
            columns = among.requests, among.queued_tokens, among.cached_tokens
            rows.append((sum(columns[0]), sum(columns[1]), sum(columns[2]) // BLOCK))
        return sorted(rows)

    told: dict[float, list[tuple[int, int, int]]] = {}
    # It is computed after 0.2048 s, its first token is there after 0.2248 s and it ends then.
    for at_s in (0.1, 0.49, 0.51, 0.74):
        made.fleet.at(at_s, lambda at_s=at_s: told.setdefault(at_s, seen()))  # type: ignore[misc]
    made.fleet.run([request], made)
    unknown, known = (0, 0, 0), (0, 0, 3)  # the last token is always computed
    assert told == {
        0.1: [unknown, (1, 4 * BLOCK, 3)],
        0.49: [unknown, known],
        0.51: [known, (1, 4 * BLOCK, 3)],
        0.74: [known, known],
    }


def test_the_more_is_shared_the_more_is_found_and_the_sooner_it_is_there() -> None:
    trace = conversations(120, 5, gap_s=0.12)
    figures = partial(Figures.of, replicas=FLEET.replicas)
    large = FLEET._replace(cache_blocks=1000)
    nothing, load, both = (
        figures(replay_gateways(trace, large, shape, SETTINGS))
        for shape in (
            GatewayShape(4, events=False),
            GatewayShape(4, 0.1),
            GatewayShape(4, 0.1, events=False),
        )
    )
    assert nothing.hit < 0.8 * min(load.hit, both.hit)
    assert nothing.ttft_mean_s > 1.1 * max(load.ttft_mean_s, both.ttft_mean_s)


def test_a_turn_that_comes_before_the_last_one_is_computed_finds_it_only_if_told() -> None:
    first = Request(0.0, 40 * BLOCK, 0, packed(range(40)))
    trace = Trace("two turns", BLOCK, [first, first._replace(arrival_s=0.5)])
    wide = FLEET._replace(cache_blocks=1000)
    found = {
        (prefixes, seed): sum(
            one.cached_tokens
            for one in replay_gateways(
                trace, wide, GatewayShape(2, 0.1, seed=seed, prefixes=prefixes), SETTINGS
            )
        )
        for prefixes in (False, True)
        for seed in range(8)
    }
    # With half of the seeds both come to one gateway, which knows by itself.
    assert {found[True, seed] for seed in range(8)} == {39 * BLOCK}
    assert {found[False, seed] for seed in range(8)} == {0, 39 * BLOCK}


def test_a_run_repeats_itself_and_its_seed_draws_the_gateways() -> None:
    trace = conversations(40, 4, gap_s=0.1)
    shapes = [GatewayShape(3, 0.1, seed=seed) for seed in (1, 1, 2)]
    first, again, other = (replay_gateways(trace, FLEET, one, SETTINGS) for one in shapes)
    assert first == again
    assert first != other

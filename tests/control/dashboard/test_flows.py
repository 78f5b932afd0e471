"""Each replica's last hour, out of readings as the supervisor takes them."""

import pytest

from tokenlane.control.dashboard.flows import PERIOD_S, POINTS, REPLICA_LIMIT, Flows
from tokenlane.control.dashboard.rates import Cells, Reading
from tokenlane.telemetry.metrics import families

FAST, SLOW = "10.0.0.1:8000", "10.0.0.2:8000"


def cells(requests: float, failures: float, answers: float) -> Cells:
    """Of both replicas, counted since the start; SLOW's answers begin in the last bucket."""
    buckets = len(families.TTFT.buckets)
    quick, late = [0.0, answers, *[0.0] * buckets], [0.0, *[0.0] * (buckets - 1), answers, 0.0]
    return {
        (families.REPLICA_REQUESTS.name, ("m", FAST)): [requests],
        (families.REPLICA_REQUESTS.name, ("n", FAST)): [requests],
        (families.REPLICA_REQUESTS.name, ("m", SLOW)): [requests],
        (families.UPSTREAM_FAILURES.name, ("m", SLOW, "timeout")): [failures],
        (families.TTFT.name, ("m", FAST)): quick,
        (families.TTFT.name, ("m", SLOW)): late,
    }


def test_a_point_for_each_period() -> None:
    flows = Flows(Reading(0.0, cells(0, 0, 0)))
    tokens = {FAST: (100.0, 100.0)}
    flows.see(Reading(PERIOD_S - 1.0, cells(60, 3, 9)), tokens, (FAST, SLOW))
    assert flows.hour().flows == {}
    # The clock of the loop is never exact.
    flows.see(Reading(PERIOD_S - 0.2, cells(60, 3, 9)), tokens, (FAST, SLOW))
    fast, slow = flows.hour().flows.values()
    assert fast.requests_per_s == [pytest.approx(4.0, rel=0.01)]
    assert slow.requests_per_s == [pytest.approx(2.0, rel=0.01)]
    assert fast.failed_per_s == [0.0]
    assert slow.failed_per_s == [pytest.approx(0.1, rel=0.01)]
    assert fast.ttft_p50_s[0] is not None
    assert slow.ttft_p50_s[0] is not None
    assert fast.ttft_p50_s[0] < families.TTFT.buckets[0] < slow.ttft_p50_s[0]
    assert fast.hit_rate == [None]  # nothing to hold the first count against
    flows.see(Reading(2 * PERIOD_S, cells(60, 3, 9)), {FAST: (175.0, 125.0)}, (FAST, SLOW))
    fast, slow = flows.hour().flows.values()
    assert (fast.hit_rate, slow.hit_rate) == ([None, 0.75], [None, None])
    assert (fast.requests_per_s[1], fast.ttft_p50_s[1]) == (0.0, None)


def test_an_hour_and_no_more_of_the_replicas_there_are() -> None:
    flows, number = Flows(Reading(0.0, {})), 0
    for number in range(1, POINTS + 10):
        flows.see(Reading(number * PERIOD_S, {}), {}, (FAST, SLOW) if number < 100 else (FAST,))
    assert POINTS * PERIOD_S == 3600
    assert [len(flow.hit_rate) for flow in flows.hour().flows.values()] == [POINTS]
    many = [str(one) for one in range(2 * REPLICA_LIMIT)]
    flows.see(Reading((number + 1) * PERIOD_S, {}), {}, many)
    assert len(flows.hour().flows) == REPLICA_LIMIT

"""The table of what several gateways tell each other."""

from bench.studies import gateways
from tests.replay.workloads import conversations
from tokenlane.replay.gateways import GatewayShape


def test_every_way_is_measured_with_every_seed() -> None:
    made = gateways.measure(conversations(30, 3, gap_s=0.3), 2, 0.5, seeds=2, counts=[3])
    assert [len(way.of_oracle) for way in made["ways"]] == [2] * (2 + 6 + 1 + 1)
    hits = {(way.policy, way.shape): way.hit for way in made["ways"]}
    alone, told = (hits["affinity", GatewayShape(3, delay_s, False)] for delay_s in (None, 0.1))
    assert max(alone) < min(told)
    lines = gateways.show(made).splitlines()
    assert lines[0] == "conversations: 2 replicas, means of 2 seeds"
    assert len(lines) == 4 + 10

"""A phase of load on one watched gateway, and what it did to it.

Invariants:
- A phase begins when the loop is free again: what the last one left behind is not charged to it.
"""

import msgspec

from bench.loads.generator import Latency, generate, latency, limit_remark
from bench.loads.openloop import Flow, Plan, Result
from bench.loads.workload import CHAT
from bench.tools.processes import core_used_s, others_remark
from bench.tools.scrape import difference, samples
from bench.tools.watched import Late, Watched, late, settle

RUNG_COUNT = "tokenlane_tokenize_seconds_count"
# What tables call requests without a whole answer with 200.
UNSERVED = "not answered with 200"


class Phase(msgspec.Struct, frozen=True):
    """What one plan did to one gateway. per_s: answers a second, by flow, while load came.
    started_s: time.monotonic() at which the plan began."""

    flows: dict[str, Latency]
    per_s: dict[str, float]
    late: Late
    rungs: dict[str, float]
    cpu_s: float
    wall_s: float
    started_s: float
    remarks: list[str]


def plain_flow(gateway: Watched, seconds_s: float, rate_per_s: float = 100.0) -> Flow:
    """Requests that need no tokenization: the data port's /health, which answers on the loop."""
    gap_s = 1 / rate_per_s
    due_s = [index * gap_s for index in range(int(seconds_s * rate_per_s))]
    return Flow("plain", gateway.port, "/health", due_s, "none", 16)


def given(name: str, gateway: Watched, due_s: list[float], bodies: list[bytes]) -> Flow:
    """Chat requests with these bodies, in turn."""
    warm = min(400, max(8, len(due_s)))
    return Flow(name, gateway.port, CHAT, due_s, "given", warm, bodies=bodies)


def phase(gateway: Watched, plan: Plan, cores: tuple[int, int], seconds_s: float) -> Phase:
    """Runs the plan against a gateway that has come to rest. seconds_s: of load in it."""
    proxy = gateway.proxy
    assert proxy.admin_port is not None
    settle(gateway)
    before, cpu_s, core_s = samples(proxy.admin_port), proxy.process.cpu_s(), core_used_s(cores[0])
    result = generate(plan, cores[1])
    cpu_s, core_s = proxy.process.cpu_s() - cpu_s, core_used_s(cores[0]) - core_s
    settle(gateway)
    rungs = difference(before, samples(proxy.admin_port), RUNG_COUNT, "rung")
    others = max(0.0, core_s - cpu_s) / result.wall_s
    found = (limit_remark(gateway.name, result, list(result.calls)),
             others_remark(gateway.name, others))  # fmt: skip
    until_s = result.started_s + result.wall_s
    return Phase(
        flows={name: latency(calls, result.wall_s) for name, calls in result.calls.items()},
        per_s=throughput(result, seconds_s),
        late=late(gateway.beats.late_s(result.started_s, until_s), result.wall_s),
        rungs={rung: count for rung, count in rungs.items() if count},
        cpu_s=cpu_s,
        wall_s=result.wall_s,
        started_s=result.started_s,
        remarks=[remark for remark in found if remark],
    )


def throughput(result: Result, seconds_s: float) -> dict[str, float]:
    """Return whole answers with 200 a second by flow, counted while load came."""
    return {
        name: sum(call.served and call.done_s <= seconds_s for call in calls) / seconds_s
        for name, calls in result.calls.items()
    }

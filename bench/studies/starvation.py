"""A gateway starved of CPU: the same load with 2, 1, 0.5 and 0.25 cores.

    python -m bench starvation [--smoke | --full]

Streams of 16 chunks at 700/s and new prompts of 2,000 tokens at 20/s, open loop, in front of a
source that only streams. The quota is the kernel's (a cgroup) where one can be made, else the
gateway is stopped and started by turns; the table says which. A request whose first token is not
there within a second counts as timed out, and so does one that is not answered whole with 200: it
waits to the end of the run.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.loads import workload
from bench.loads.generator import evenly, generate, limit_remark
from bench.loads.openloop import Call, Flow, Plan
from bench.loads.phases import UNSERVED, given
from bench.loads.prompts import chars_for
from bench.loads.workload import CHAT
from bench.tools import machine
from bench.tools.command_line import Options, main
from bench.tools.finding import Finding, Plot, Series, Shape, Table, few, milliseconds
from bench.tools.processes import Process, free_ports, module, need_tools, say, two_cores
from bench.tools.quota import Quota, quota_of
from bench.tools.statistics import Cell, quantile
from bench.tools.watched import Watched, late, settle, watched

STREAMS_PER_S, PROMPTS_PER_S = 700, 20
CHUNKS, PROMPT_TOKENS, PROMPT_TURNS = 16, 2_000, 8
TIMEOUT_S = 1.0
SHARES = (2.0, 1.0, 0.5, 0.25)


class Level(NamedTuple):
    """What one share of CPU gave. timed_out: of all requests; unserved: how many were not answered
    whole with 200."""

    cores: float
    requests: int
    first_p50_ms: float | None
    first_p99_ms: float | None
    timed_out: float
    unserved: int
    late_p99_ms: float | None
    used_cores: float
    remarks: list[str]


class Stretch(NamedTuple):
    """A run under one quota. name: makes its prompts new."""

    name: str
    cores: float
    seconds_s: float


def stretches(options: Options) -> list[Stretch]:
    """Return the runs in their order; the first warms the gateway up and is not counted."""
    seconds_s = options.pick(0.5, 4.0, 15.0)
    shares = options.pick((0.5,), SHARES, SHARES)
    warm_up = Stretch("warm-up", 2.0, 0.5)
    return [warm_up, *(Stretch(f"{cores:g} cores", cores, seconds_s) for cores in shares)]


def prompts(name: str, count: int) -> list[bytes]:
    """Return new prompts of a run, which no run of another name has."""
    talk = workload.Conversations()
    size = chars_for(PROMPT_TOKENS)
    return [talk.body(size, PROMPT_TURNS, f"{name} {n}", stream=True) for n in range(count)]


def first_ms(calls: Sequence[Call], end_s: float) -> list[float]:
    """Return the times from due to the first byte of the body, to the end of the run where no whole
    answer with 200 came."""
    return [((call.first_byte_s if call.served else end_s) - call.due_s) * 1e3 for call in calls]


def level(
    cores: float,
    calls: Sequence[Call],
    end_s: float,
    late_p99_ms: float | None,
    used_cores: float,
    remarks: list[str],
) -> Level:
    """Return what the calls of a run say."""
    waited_ms = first_ms(calls, end_s)
    timed_out = sum(
        not call.served or ms > TIMEOUT_S * 1e3 for call, ms in zip(calls, waited_ms, strict=True)
    )
    return Level(
        cores, len(calls), quantile(waited_ms, 0.5), quantile(waited_ms, 0.99),
        timed_out / len(calls), sum(not call.served for call in calls), late_p99_ms, used_cores,
        remarks,
    )  # fmt: skip


def measure(gateway: Watched, quota: Quota, stretch: Stretch, load_core: int) -> Level:
    """The load under one quota; the gateway is at rest before and after."""
    _, cores, seconds_s = stretch
    quota.limit(None)
    settle(gateway)
    due_s = evenly(PROMPTS_PER_S, seconds_s, 2)
    bodies = prompts(stretch.name, len(due_s))
    streams_s = evenly(STREAMS_PER_S, seconds_s, 1)
    flows = [
        Flow("streams", gateway.port, CHAT, streams_s, "stream", 200, 300),
        given("prompts", gateway, due_s, bodies),
    ]
    quota.limit(cores)
    cpu_s = gateway.proxy.process.cpu_s()
    result = generate(Plan(flows, linger_s=4.0), load_core)
    cpu_s = gateway.proxy.process.cpu_s() - cpu_s
    quota.limit(None)
    settle(gateway)
    calls = [call for flow in result.calls.values() for call in flow]
    until_s = result.started_s + result.wall_s
    beats = late(gateway.beats.late_s(result.started_s, until_s), result.wall_s)
    remark = limit_remark(f"{cores:g} cores", result, list(result.calls))
    remarks = [remark] if remark else []
    return level(cores, calls, result.wall_s, beats.p99_ms, cpu_s / result.wall_s, remarks)


def run(options: Options) -> Finding:
    """All shares, on one gateway."""
    need_tools("taskset")
    _, load_core = two_cores()
    facts = machine.facts()
    ports = free_ports(4)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    flags = [word for port in ports for word in ("--port", str(port))]
    argv = module("bench.tools.stream_source", *flags, "--events", str(CHUNKS))
    levels = []
    with Process("source", argv, core=load_core) as source:
        source.wait_listening(ports[-1])
        # Not pinned: how many cores it gets is what this is about.
        with (
            watched("tokenlane", urls, None, options) as gateway,
            quota_of(gateway.proxy.process) as quota,
        ):
            warm_up, *counted = stretches(options)
            measure(gateway, quota, warm_up, load_core)
            for stretch in counted:
                say(f"  starvation, {stretch.name} by {quota.how}")
                levels.append(measure(gateway, quota, stretch, load_core))
            how = quota.how
    return finding(facts, levels, how)


def finding(facts: dict[str, Any], levels: list[Level], how: str) -> Finding:
    """The table, the curve, and from how many cores up nothing timed out."""
    rows: list[list[Cell]] = [
        [f"{one.cores:g}", one.requests, one.first_p50_ms, one.first_p99_ms, one.timed_out,
         one.unserved, one.late_p99_ms, one.used_cores]
        for one in levels
    ]  # fmt: skip
    calm = [one.cores for one in levels if one.timed_out == 0]
    needed = min(calm) if calm else None
    first, last = levels[0], levels[-1]
    rising = None
    if len(levels) > 1 and first.first_p99_ms and last.first_p99_ms:
        rising = last.first_p99_ms > 3 * first.first_p99_ms
    return Finding(
        name="starvation",
        title="the gateway starved of CPU, the same load with less and less",
        machine=facts,
        settings={"streams_per_s": STREAMS_PER_S, "prompts_per_s": PROMPTS_PER_S,
                  "prompt_tokens": PROMPT_TOKENS, "chunks": CHUNKS, "timeout_s": TIMEOUT_S,
                  "quota": how},
        tables=[
            Table(f"by {how}",
                  ["cores", "requests", "TTFT p50 ms", "p99 ms", "timed out", UNSERVED,
                   "loop late p99 ms", "cores used"], rows)
        ],
        plots=[
            Plot(
                title="time to the first token by cores", x="cores", y="ms", log="xy",
                series=[
                    Series("p50", [(one.cores, one.first_p50_ms or 0.0) for one in levels]),
                    Series("p99", [(one.cores, one.first_p99_ms or 0.0) for one in levels]),
                ],
            )
        ],
        shapes=[
            Shape("the tail rises steeply once the gateway gets less CPU than it uses", rising,
                  f"TTFT p99 at {first.cores:g} -> {last.cores:g} cores "
                  f"{milliseconds(first.first_p99_ms, last.first_p99_ms)}")
        ],
        remarks=[f"quota: {how}", *few(remark for one in levels for remark in one.remarks)],
        numbers={"cores_needed": needed},
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "starvation")

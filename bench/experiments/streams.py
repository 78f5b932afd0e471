"""What a streamed chunk costs: the gateway beside a plain aiohttp proxy and a pipe, alternated.

    python -m bench streams [--smoke | --full] [--json FILE]

200 SSE streams at a time, 128 chunks each, 10 ms apart, from a source that only streams; a new
one starts whenever one ends, at times fixed in advance. The proxy under test has one core, the
source and the load generator the other. CPU is that of the proxy's whole process tree; the
added time to the first token is its quantile less the same quantile without a proxy. A stream that
was refused, or whose first token never came, waited for it to the end of the run.
"""

from contextlib import ExitStack
from typing import Any

import msgspec

from bench.loads.generator import evenly, generate, lateness_s, limit_remark
from bench.loads.openloop import Call, Flow, Plan
from bench.tools import machine
from bench.tools.client import fetch
from bench.tools.command_line import Options, main
from bench.tools.finding import Finding, Table, bars
from bench.tools.processes import (
    BenchError,
    Process,
    core_used_s,
    free_ports,
    module,
    need_tools,
    others_remark,
    say,
    two_cores,
)
from bench.tools.statistics import Cell, median, minus, quantile, ratio
from bench.tools.systems import Proxy, aiohttp_proxy, gateway, pipe

CHUNKS = 128
GAP_S = 0.010


class Run(msgspec.Struct, frozen=True):
    """One proxy, one run. Shares are of one core; `broken`: streams without their end."""

    proxy: str
    streams: int
    broken: int
    chunk_us: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    proxy_share: float
    client_share: float
    source_share: float
    others_share: float
    client_late_ms: float
    source_late_ms: float
    remarks: list[str]


def plan(port: int, streams: int, seconds_s: float, seed: int) -> Plan:
    """Starts spread so that `streams` are under way at any time."""
    rate_per_s = streams / (CHUNKS * GAP_S)
    due_s = evenly(rate_per_s, seconds_s, seed)
    flow = Flow("streams", port, "/v1/chat/completions", due_s, "stream", streams + 32, 300)
    return Plan([flow], linger_s=CHUNKS * GAP_S + 5)


def ttft_ms(calls: list[Call], end_s: float) -> list[float]:
    """Return what streams waited for their first token: one that came and was then broken off is
    counted as `broken`."""
    return [
        ((call.first_byte_s if call.status == 200 and call.first_byte_s else end_s) - call.due_s)
        * 1e3
        for call in calls
    ]


def measure(
    proxy: Proxy, source: Process, source_port: int, what: Plan, cores: tuple[int, int]
) -> Run:
    """One run through one proxy (or none: then `proxy` is the source itself)."""
    fetch(source_port, "/bench/reset")
    before_s, source_before_s = proxy.process.cpu_s(), source.cpu_s()
    core_before_s = core_used_s(cores[0])
    result = generate(what, cores[1])
    used_s, source_s = proxy.process.cpu_s() - before_s, source.cpu_s() - source_before_s
    own_s = 0.0 if proxy.process is source else used_s
    others = max(0.0, core_used_s(cores[0]) - core_before_s - own_s) / result.wall_s
    late_ms = msgspec.json.decode(fetch(source_port, "/bench/stats").body, type=dict[str, float])
    calls = result.calls["streams"]
    waited_ms = ttft_ms(calls, result.wall_s)
    chunks = sum(call.events for call in calls)
    if not chunks:
        raise BenchError(f"{proxy.name} answered no stream: {proxy.process.tail()}")
    return Run(
        proxy=proxy.name,
        streams=len(calls),
        broken=sum(1 for call in calls if not call.served or call.events != CHUNKS + 1),
        chunk_us=used_s / chunks * 1e6,
        ttft_p50_ms=quantile(waited_ms, 0.5) or 0.0,
        ttft_p99_ms=quantile(waited_ms, 0.99) or 0.0,
        proxy_share=used_s / result.wall_s,
        client_share=result.cpu_s / result.wall_s,
        source_share=source_s / result.wall_s,
        client_late_ms=lateness_s(calls) * 1e3,
        source_late_ms=late_ms["0.99"],
        others_share=others,
        remarks=[
            remark
            for remark in (
                limit_remark(proxy.name, result, ["streams"]),
                others_remark(proxy.name, others),
            )
            if remark
        ],
    )


def summary(name: str, runs: list[Run]) -> dict[str, Any]:
    """Medians of a proxy's runs; `added_*` against the direct run of the same turn."""
    own = [one for one in runs if one.proxy == name]
    direct = [one for one in runs if one.proxy == "direct"]
    added_p50 = [one.ttft_p50_ms - base.ttft_p50_ms for one, base in zip(own, direct, strict=True)]
    added_p99 = [one.ttft_p99_ms - base.ttft_p99_ms for one, base in zip(own, direct, strict=True)]
    fields = [
        "chunk_us", "ttft_p50_ms", "ttft_p99_ms", "proxy_share", "client_share", "source_share",
        "client_late_ms", "source_late_ms", "others_share",
    ]  # fmt: skip
    values: dict[str, Any] = {
        field: median([getattr(one, field) for one in own]) for field in fields
    }
    values["added_p50_ms"] = median(added_p50)
    values["added_p99_ms"] = median(added_p99)
    values["added_p99_ms_runs"] = added_p99
    values["streams"] = sum(one.streams for one in own)
    values["broken"] = sum(one.broken for one in own)
    values["remarks"] = [remark for one in own for remark in one.remarks]
    return values


def run(runs: int, seconds_s: float, streams: int) -> dict[str, Any]:
    """The whole measurement, ready for JSON."""
    need_tools("taskset")
    cores = core, load_core = two_cores()
    ports = free_ports(4)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    argv = module(
        "bench.tools.stream_source", *[word for port in ports for word in ("--port", str(port))]
    )
    done: list[Run] = []
    with ExitStack() as stack:
        source = stack.enter_context(Process("source", argv, core=load_core))
        source.wait_listening(ports[-1])
        ours = stack.enter_context(gateway(urls, core))
        plain = stack.enter_context(aiohttp_proxy(urls, core))
        floor = stack.enter_context(pipe(urls, core))
        direct = Proxy("direct", source, ports[0])
        proxies = [ours, plain, floor]
        for turn in range(runs + 1):
            for proxy in (direct, *(proxies if turn % 2 else proxies[::-1])):
                length_s = seconds_s if turn else 1.5
                what = plan(proxy.port, streams, length_s, turn)
                one = measure(proxy, source, ports[0], what, cores)
                if turn:
                    done.append(one)
                    say(
                        f"  streams run {turn}/{runs} {proxy.name}: {one.chunk_us:.1f} us a chunk, "
                        f"first token p99 {one.ttft_p99_ms:.2f} ms"
                    )
    found = {one.name: summary(one.name, done) for one in (*proxies, direct)}
    ours_values, plain_values = found[ours.name], found[plain.name]
    return {
        "bench": "streams",
        "machine": machine.facts(),
        "settings": {"runs": runs, "seconds": seconds_s, "streams": streams, "chunks": CHUNKS},
        "proxies": found,
        "chunk_cpu_ratio": ratio(ours_values["chunk_us"], plain_values["chunk_us"]),
        "chunk_cpu_over_pipe": ratio(ours_values["chunk_us"], found[floor.name]["chunk_us"]),
        "added_p99_ratio": ratio(ours_values["added_p99_ms"], plain_values["added_p99_ms"]),
        "added_p50_difference_ms": minus(ours_values["added_p50_ms"], plain_values["added_p50_ms"]),
    }


HEADER = [
    "proxy", "CPU us/chunk", "added TTFT p50 ms", "p99 ms", "of core", "client of core",
    "source of core", "client late p99 ms", "source late p99 ms", "broken",
]  # fmt: skip


def finding(result: dict[str, Any]) -> Finding:
    """The table, its two plots, and what disturbed the runs."""
    rows: list[list[Cell]] = []
    remarks = []
    for name, one in result["proxies"].items():
        alone = name == "direct"
        rows.append(
            [
                name, None if alone else one["chunk_us"], one["added_p50_ms"], one["added_p99_ms"],
                None if alone else one["proxy_share"], one["client_share"], one["source_share"],
                one["client_late_ms"], one["source_late_ms"], one["broken"],
            ]
        )  # fmt: skip
        remarks += one["remarks"][:1]
        if len(one["remarks"]) > 1:
            remarks.append(f"{name}: {len(one['remarks'])} such remarks in all, see the JSON")
    remarks.append(
        f"gateway / aiohttp: CPU per chunk {result['chunk_cpu_ratio']:.2f}, "
        f"added TTFT p99 {result['added_p99_ratio'] or float('nan'):.2f}; "
        f"gateway / pipe: CPU per chunk {result['chunk_cpu_over_pipe']:.2f}"
    )
    proxies = {name: one for name, one in result["proxies"].items() if name != "direct"}
    return Finding(
        name="streams",
        title="what a streamed chunk costs, beside a plain aiohttp proxy and a pipe",
        machine=result["machine"],
        settings=result["settings"] | {"remarks": [one["remarks"] for one in proxies.values()]},
        tables=[Table("", HEADER, rows)],
        plots=[
            bars(title, unit, {name: one[field] for name, one in proxies.items()})
            for title, unit, field in (
                ("CPU per chunk", "us", "chunk_us"),
                ("added time to the first token, p99", "ms", "added_p99_ms"),
            )
        ],
        remarks=remarks,
        numbers={"chunk_cpu_ratio": result["chunk_cpu_ratio"]},
    )


def experiment(options: Options) -> Finding:
    """Alternated runs at the scale asked for."""
    runs, seconds_s, streams = options.pick((1, 1.0, 50), (2, 3.0, 200), (5, 5.0, 200))
    return finding(run(runs, seconds_s, streams))


if __name__ == "__main__":
    main(experiment, __doc__, "streams")

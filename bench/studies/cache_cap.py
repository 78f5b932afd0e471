"""What a small cap per cache entry costs: 8 KiB against 64 KiB, at 20 users.

    python -m bench cache_cap [--smoke | --full]

20 users ask twice a second each, open loop; each brings a document of 8 to 24 KiB that stays, and a
question that is new. With a cap of 8 KiB no document is ever kept, and each request encodes it
again. The cap is that of all caches. With `tokenizers`, as the published figure, and with the
fast engines.
"""

import random
from typing import Any

from bench.loads import workload
from bench.loads.generator import evenly
from bench.loads.openloop import Plan
from bench.loads.phases import Phase, given, phase, plain_flow
from bench.tools import machine
from bench.tools.canned import Canned
from bench.tools.command_line import Options, main
from bench.tools.finding import Beside, Finding, Plot, Series, Shape, Table, few, milliseconds
from bench.tools.processes import free_ports, need_tools, say, two_cores
from bench.tools.statistics import Cell, minus
from bench.tools.watched import Watched, watched

USERS, PER_USER_S = 20, 2.0
DOCUMENT_CHARS = (8 * 1024, 24 * 1024)
CAPS_KIB = (8, 64)
ENGINES = {"tokenizers": False, "fast engines": True}


def settings(cap_kib: int, fast: bool) -> dict[str, Any]:
    """The cap on every cache."""
    return {"fast_engines": fast, "cache_entry_limit_bytes": cap_kib * 1024}


def plan(gateway: Watched, seconds_s: float, nonce: str) -> Plan:
    """The users' requests: each a known document and a new question."""
    chooser = random.Random(7)
    documents = [workload.text(chooser.randint(*DOCUMENT_CHARS), n) for n in range(USERS)]
    due_s = evenly(USERS * PER_USER_S, seconds_s, 3)
    bodies = [
        workload.chat(
            [("system", documents[n % USERS]), ("user", f"{nonce} {n} {workload.text(80, n)}")]
        )
        for n in range(len(due_s))
    ]
    flows = [plain_flow(gateway, seconds_s, 50.0), given("chats", gateway, due_s, bodies)]
    return Plan(flows, linger_s=3.0)


HEADER = ["engine, cap", "p50 ms", "p99 ms", "/health p99 ms", "CPU of its core", "rungs"]


def row(name: str, got: Phase) -> list[Cell]:
    """A line of the table."""
    return [
        name, got.flows["chats"].p50_ms, got.flows["chats"].p99_ms, got.flows["plain"].p99_ms,
        got.cpu_s / got.wall_s, ", ".join(f"{rung} {n:.0f}" for rung, n in got.rungs.items()),
    ]  # fmt: skip


def run(options: Options) -> Finding:
    """Both caps with both engines."""
    need_tools("nginx", "taskset")
    cores = core, load_core = two_cores()
    facts = machine.facts()
    seconds_s = options.pick(0.5, 3.0, 15.0)
    engines = options.pick({"tokenizers": False}, ENGINES, ENGINES)
    got: dict[tuple[str, int], Phase] = {}
    with Canned(free_ports(4), load_core) as canned:
        for engine, fast in engines.items():
            for cap in CAPS_KIB:
                name = f"{engine}, {cap} KiB"
                say(f"  cache_cap, {name}")
                tokens = settings(cap, fast)
                with watched(f"cap{cap}", canned.urls, core, options, tokens) as gateway:
                    phase(gateway, plan(gateway, 1.0, "warm"), cores, 1.0)
                    asked = plan(gateway, seconds_s, "asked")
                    got[engine, cap] = phase(gateway, asked, cores, seconds_s)
    return finding(facts, list(engines), got, seconds_s)


def finding(
    facts: dict[str, Any], engines: list[str], got: dict[tuple[str, int], Phase], seconds_s: float
) -> Finding:
    """The table, and what the small cap loses."""
    small, large = CAPS_KIB
    lost = {
        engine: minus(got[engine, small].flows["chats"].p50_ms,
                      got[engine, large].flows["chats"].p50_ms)
        for engine in engines
    }  # fmt: skip
    reference = lost["tokenizers"]
    return Finding(
        name="cache_cap",
        title=f"a cap of {small} KiB an entry against {large} KiB, {USERS} users",
        machine=facts,
        settings={"users": USERS, "per_user_s": PER_USER_S, "seconds": seconds_s,
                  "document_chars": list(DOCUMENT_CHARS)},
        tables=[
            Table("", HEADER, [row(f"{engine}, {cap} KiB", one)
                               for (engine, cap), one in got.items()])
        ],
        plots=[
            Plot(
                title="median latency of a chat by cap per entry",
                x="", y="ms", kind="bars", labels=[f"{cap} KiB" for cap in CAPS_KIB],
                series=[
                    Series(engine, [(float(n), got[engine, cap].flows["chats"].p50_ms or 0.0)
                                    for n, cap in enumerate(CAPS_KIB)])
                    for engine in engines
                ],
            )
        ],
        published=[
            Beside(f"P50 lost with 8 KiB, {engine}", "5-7 ms", milliseconds(lost[engine]))
            for engine in engines
        ],
        shapes=[
            Shape(
                "a cap below the size of a shared text costs milliseconds of every request",
                None if reference is None else reference > 1.0,
                ", ".join(f"{engine} {milliseconds(value)}" for engine, value in lost.items()),
            )
        ],
        remarks=few(remark for one in got.values() for remark in one.remarks),
        numbers={f"{engine} lost ms": value for engine, value in lost.items()},
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "cache_cap")

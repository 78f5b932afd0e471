"""Gateways under test with settings of their own, and what a phase of load did to one.

Invariants:
- The gateway has one core, supervisor and tokenizer processes included, unless told otherwise;
  all that drives it has the other.
- A phase begins when the loop is free again: what the last one left behind is not charged to it.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench import workload
from bench.build import compiled
from bench.client import fetch
from bench.lab.beats import Beats
from bench.lab.common import Options
from bench.load import Latency, generate, latency, limit_remark
from bench.openloop import Flow, Plan, Result
from bench.processes import (
    Process,
    core_used_s,
    free_ports,
    module,
    others_remark,
    pause,
    python_path,
)
from bench.scrape import difference, samples
from bench.statistics import quantile
from bench.systems import MODEL_FOLDER, Proxy, wait_ready

CHAT = "/v1/chat/completions"
RUNG_COUNT = "tokenlane_tokenize_seconds_count"
BLOCKING_S = 0.005
SETTLED_S = 0.02


class Watched(msgspec.Struct, frozen=True):
    """A gateway whose loop keeps a beat."""

    proxy: Proxy
    beats: Beats

    @property
    def name(self) -> str:
        """As given."""
        return self.proxy.name

    @property
    def port(self) -> int:
        """Its data port."""
        return self.proxy.port


class Late(msgspec.Struct, frozen=True):
    """Of a loop's beats. blocked: share of the time spent in stalls above BLOCKING_S."""

    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    blocked: float


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


def late(values_s: Sequence[float], wall_s: float) -> Late:
    """What these beats say."""
    return Late(
        p50_ms=_ms(quantile(values_s, 0.5)),
        p99_ms=_ms(quantile(values_s, 0.99)),
        max_ms=_ms(max(values_s, default=None)),
        blocked=min(1.0, sum(one for one in values_s if one > BLOCKING_S) / max(wall_s, 1e-9)),
    )


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else value_s * 1e3


@contextmanager
def watched(
    name: str,
    urls: Sequence[str],
    core: int | None,
    options: Options,
    tokens: dict[str, Any] | None = None,
) -> Iterator[Watched]:
    """A gateway with these `tokens` settings over the defaults, ready."""
    port, admin_port = free_ports(2)
    settings = {
        "backends": list(urls),
        "server": {"port": port, "workers": 1},
        "admin": {"port": admin_port},
        "tokens": {"folders": {workload.MODEL: str(MODEL_FOLDER)}, **(tokens or {})},
    }
    with tempfile.TemporaryDirectory(prefix="bench-lab-") as folder:
        config, beats = Path(folder) / "settings.yaml", Beats(Path(folder) / "beats")
        config.write_bytes(msgspec.json.encode(settings))  # JSON is YAML
        build = None if options.plain else compiled()
        argv = [
            "env", f"PYTHONPATH={python_path(build)}",
            *module("bench.lab.host", "--config", str(config), "--beats", f"{folder}/beats"),
        ]  # fmt: skip
        build = None if options.plain else compiled()
        log_name = name.replace(" ", "-").replace("+", "and")
        with Process(log_name, argv, core=core, folder=build) as process:
            process.wait_listening(port, 60)
            wait_ready(process, admin_port)
            yield Watched(Proxy(name, process, port, admin_port), beats)


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
    """Answers a second by flow, counted while load came."""
    return {
        name: sum(call.whole and call.done_s <= seconds_s for call in calls) / seconds_s
        for name, calls in result.calls.items()
    }


def settle(gateway: Watched, limit_s: float = 12.0) -> None:
    """Returns when the loop answers at once three times in a row, or after the limit."""
    until_s = time.monotonic() + limit_s
    quick = 0
    while quick < 3 and time.monotonic() < until_s:
        began_s = time.monotonic()
        answered = fetch(gateway.port, "/health", deadline_s=limit_s).status == 200
        quick = quick + 1 if answered and time.monotonic() - began_s < SETTLED_S else 0
        pause(0.01)

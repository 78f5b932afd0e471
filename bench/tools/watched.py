"""Gateways under test with settings of their own, whose loop keeps a beat that others can read.

Invariants:
- The gateway has one core, supervisor and tokenizer processes included, unless told otherwise;
  all that drives it has the other.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.tools.beats import Beats
from bench.tools.build import compiled
from bench.tools.client import fetch
from bench.tools.command_line import Options
from bench.tools.demo_model import MODEL, MODEL_FOLDER
from bench.tools.processes import (
    Process,
    free_ports,
    module,
    pause,
    python_path,
)
from bench.tools.statistics import quantile
from bench.tools.systems import Proxy, wait_ready

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
        "tokens": {"folders": {MODEL: str(MODEL_FOLDER)}, **(tokens or {})},
    }
    with tempfile.TemporaryDirectory(prefix="bench-watched-") as folder:
        config, beats = Path(folder) / "settings.yaml", Beats(Path(folder) / "beats")
        config.write_bytes(msgspec.json.encode(settings))  # JSON is YAML
        build = None if options.plain else compiled()
        argv = [
            "env", f"PYTHONPATH={python_path(build)}",
            *module("bench.tools.host", "--config", str(config), "--beats", f"{folder}/beats"),
        ]  # fmt: skip
        log_name = name.replace(" ", "-").replace("+", "and")
        with Process(log_name, argv, core=core, folder=build) as process:
            process.wait_listening(port, 60)
            wait_ready(process, admin_port)
            yield Watched(Proxy(name, process, port, admin_port), beats)


def settle(gateway: Watched, limit_s: float = 12.0) -> None:
    """Returns when the loop answers at once three times in a row, or after the limit."""
    until_s = time.monotonic() + limit_s
    quick = 0
    while quick < 3 and time.monotonic() < until_s:
        began_s = time.monotonic()
        answered = fetch(gateway.port, "/health", deadline_s=limit_s).status == 200
        quick = quick + 1 if answered and time.monotonic() - began_s < SETTLED_S else 0
        pause(0.01)

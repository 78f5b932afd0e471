"""The replicas of a soak, each a process of its own, and what befalls them."""

import asyncio
import contextlib
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.raw import Client, json_bytes, post
from tests.tokens.models import SHARED
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.tokens.demo import demo_folder

# Switches of the simulated replicas: for a while, or for the next few requests.
FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "status", "status": 500, "count": 12},
    {"kind": "status", "status": 503, "count": 5},
    {"kind": "close", "count": 3},
    {"kind": "garbage", "count": 3},
    {"kind": "hang", "count": 2},
    {"kind": "stall", "after_chunks": 3, "count": 2},
    {"kind": "die-mid-stream", "after_chunks": 5, "count": 3},
    {"kind": "die-mid-stream", "after_bytes": 100, "reset": True, "count": 3},
    {"kind": "abort", "after_chunks": 0, "count": 3},
    {"kind": "abort", "after_chunks": 4, "count": 3},
    {"kind": "error-event", "after_chunks": 2, "count": 3},
    {"kind": "slow", "factor": 10.0, "for_s": 2.0},
    {"kind": "refuse", "for_s": 1.5},
    {"kind": "kill", "for_s": 1.5},
    {"kind": "drain", "for_s": 1.5},
    {"kind": "unhealthy", "for_s": 3.0},
)


def tokenizer_folder() -> Path:
    """A real tokenizer's, where there is one at hand; else the demo's. Both ends have it."""
    real = SHARED / "qwen3"
    return real if (real / "tokenizer.json").is_file() else demo_folder()


class Replicas:
    """`with Replicas(count, folder) as replicas: replicas.urls`. executions: their common log."""

    def __init__(self, count: int, folder: Path) -> None:
        self.executions = folder / "executions"
        self._first = free_ports(count)
        self.ports = tuple(range(self._first, self._first + count))
        self.urls = tuple(f"http://127.0.0.1:{port}" for port in self.ports)
        self._processes = [self._process(port) for port in self.ports]

    def _process(self, port: int) -> FleetProcess:
        flags = {
            "execution-log": str(self.executions),
            "cache-blocks": "4000",
            "token-interval-s": "0.004",
            "prefill-tokens-per-s": "100000",
            "prompt-cache-bytes": "16000000",
            "kv-events": "maps",
            "tokenizer": f"demo={tokenizer_folder()}",
        }
        words = [word for name, value in flags.items() for word in ("--" + name, value)]
        return FleetProcess(1, port, words)

    def __enter__(self) -> Self:
        with ThreadPoolExecutor() as pool:
            list(pool.map(FleetProcess.__enter__, self._processes))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.__exit__(None, None, None)

    async def fault(self, number: int, fault: dict[str, Any]) -> None:
        """Switches one on, if the replica answers."""
        with contextlib.suppress(OSError, TimeoutError):
            client = await Client.connect(self.ports[number])
            with contextlib.closing(client):
                await client.send(post("/sim/fault", json_bytes(fault)))
                async with asyncio.timeout(2.0):
                    await client.answer()

    async def stop(self, number: int, for_s: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        pid = self._processes[number].pid
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(for_s)
        os.kill(pid, signal.SIGCONT)

    async def restart(self, number: int, away_s: float) -> None:
        """kill -9; another process on the same port after a while."""
        process = self._processes[number]
        os.kill(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.__exit__, None, None, None)
        await asyncio.sleep(away_s)
        await asyncio.to_thread(process.__enter__)

    async def misbehave(self, draw: random.Random) -> str:
        """Something of all this to one of them; what it was."""
        number = draw.randrange(len(self.ports))
        dice = draw.random()
        if dice < 0.08:
            await self.restart(number, draw.random())
            return "restart"
        if dice < 0.16:
            await self.stop(number, 0.5 + 3.0 * draw.random())
            return "stop"
        fault = draw.choice(FAULTS)
        await self.fault(number, fault)
        return str(fault["kind"])

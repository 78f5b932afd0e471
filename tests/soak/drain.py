"""One gateway after the other on the same port, under load: each new one begins to serve, the
old one is told to stop and drains while the next ones start.

Invariants:
- The port never has nobody, so no client may see anything but whole answers.
- Every gateway has served, and under load, before it is told to stop.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.audit import Books, problems
from tests.soak.clients import Crowd
from tests.soak.fleet import Replicas
from tests.soak.process import PATIENCE_S, Gateway
from tokenlane.config.settings import (
    AdminSettings,
    LogSettings,
    ServerSettings,
    Settings,
    TokenSettings,
)
from tokenlane.runtime.ports import free_ports
from tokenlane.tokens.demo import demo_folder

# Gateways that drain at the same time.
_AT_ONCE = 3
# Nobody is asked for longer than for so many requests.
_RECENT = 200


def settings(urls: tuple[str, ...], folder: Path, port: int, workers: int) -> Settings:
    """Two gateways with these serve on one port."""
    return Settings(
        backends=urls,
        server=ServerSettings(port=port, share_port=True, workers=workers),
        admin=AdminSettings(port=0),
        tokens=TokenSettings(folders={"demo": str(demo_folder())}),
        log=LogSettings(access=str(folder / "access.log"), format="json", sample_ratio=1.0),
    )


@dataclass
class Drains:
    """What came of them. drains_s: how long each took. in_hand: requests that were not over when
    drains began, in all. took_s: all of it."""

    problems: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    drains_s: list[float] = field(default_factory=list)
    in_hand: int = 0
    took_s: float = 0.0


async def drains(folder: Path, count: int, *, workers: int) -> Drains:
    """So many, one after the other."""
    told = Drains()
    began_s = time.monotonic()
    with Replicas(workers, folder) as fleet, contextlib.ExitStack() as stack:
        made = settings(fleet.urls, folder, free_ports(1), workers)
        gateway = stack.enter_context(Gateway(made, folder))
        crowd = Crowd(gateway.port, seed=7, hasty=2.0)
        kinds = [*[crowd.talks] * 8, *[crowd.crawls] * 2, *[crowd.once] * 2]
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(crowd.run(kinds))
            draining: deque[asyncio.Task[None]] = deque()
            for _ in range(count):
                fresh = await asyncio.to_thread(Gateway, made, folder)
                stack.push(fresh)
                await asyncio.to_thread(_serves, fresh)
                draining.append(group.create_task(_drain(gateway, crowd, told)))
                if len(draining) > _AT_ONCE:
                    await draining.popleft()
                gateway = fresh
            await asyncio.gather(*draining)
            told.took_s = time.monotonic() - began_s
            crowd.stopping = True
            await asking
        await asyncio.to_thread(gateway.stop)
        await asyncio.to_thread(gateway.process.wait, PATIENCE_S)
        told.problems += crowd.wrong
        if crowd.turned_away:
            told.problems.append(f"clients were turned away: {dict(crowd.turned_away_by)}")
    lines = [*map(json.loads, (folder / "access.log").read_text(encoding="utf-8").splitlines())]
    ran = fleet.executions.read_text(encoding="utf-8").splitlines()
    executions = Counter(line.split()[1] for line in ran)
    told.problems += problems(Books(crowd.asked, lines, executions, (), len(lines)))
    told.outcomes.update(one.outcome for one in crowd.asked)
    return told


async def _drain(gateway: Gateway, crowd: Crowd, told: Drains) -> None:
    """Tells it to stop, and waits for its end."""
    told.in_hand += sum(one.outcome == "open" for one in crowd.asked[-_RECENT:])
    began_s = time.monotonic()
    await asyncio.to_thread(gateway.stop)
    code = await asyncio.to_thread(gateway.process.wait, PATIENCE_S)
    told.drains_s.append(time.monotonic() - began_s)
    gateway.close()
    if code:
        told.problems.append(f"an exit code is {code}")


def _serves(gateway: Gateway) -> None:
    """Returns once all its workers do."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not all(gateway.pids()):
        assert time.monotonic() < deadline_s, "a gateway does not begin to serve"
        time.sleep(0.02)

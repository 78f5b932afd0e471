"""The tasks of `agents` end to end: how long until a replica has what a sub-agent asks?

    python -m bench agent_sockets [--tasks N] [--forward] [--json]

The same users, tasks and lengths as chats in text, through a real gateway (one worker) onto four
simulated replicas, at their own pace. *Added* is from the client's sending to the replica having
the whole body: reading, templates, tokenizing, hashing, routing, waiting in the gateway, sending.
That is what the gateway adds to the time before a first kernel; what a replica's own queue adds
stands beside it. With --forward chats go on as ids, and the replica has nothing left to tokenize.

Invariants:
- Both ends read the same clock (time.monotonic() of one machine); what the client itself is late
  by counts as added.
- Bodies are made before the first is sent, and connections kept open, so that the client has little
  to do but to send.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import uvloop

from bench.experiments import agents
from bench.experiments.agents import PUBLISHED_MS
from bench.loads.agent_requests import Call, Maker, Work
from bench.loads.agent_tasks import BLOCK_TOKENS
from bench.loads.agent_tasks import tasks as tasks_of
from bench.tools import machine
from bench.tools.client import Answer, Connection
from bench.tools.demo_model import MODEL, MODEL_FOLDER
from bench.tools.processes import BenchError, Process, module, say
from bench.tools.scrape import samples
from bench.tools.statistics import Cell, quantile, table
from bench.tools.systems import Proxy, gateway, wait_known
from tokenlane.replay.timed_fleet import PREFILL_TOKENS_PER_S, TOKEN_INTERVAL_S
from tokenlane.runtime.ports import free_ports
from tokenlane.tokens.tokenizer import Tokenizer

REPLICAS = agents.SHAPE.replicas
CROWDS = list(PUBLISHED_MS)
CONNECTIONS = 128


class Usage(msgspec.Struct):
    """What is needed of an answer's."""

    prompt_tokens: int
    prompt_tokens_details: dict[str, Any]


class Told(msgspec.Struct):
    """What is needed of an answer."""

    usage: Usage


class Link(Connection):
    """A client's connection that keeps what it is answered."""

    def send(self, request: bytes) -> None:
        self.body = bytearray()
        super().send(request)

    def on_body(self, body: bytes) -> None:
        self.body += body
        super().on_body(body)


class Done(NamedTuple):
    """What became of a call. sent_s: time.monotonic()."""

    call: Call
    sent_s: float
    cached_tokens: int


class Crowd:
    """Users at work through one gateway."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Link] = []
        self._waiting: dict[Connection, asyncio.Future[Answer]] = {}
        self.done: list[Done] = []
        self.took_s: list[float] = []

    async def run(self, users: list[list[Work]]) -> None:
        """All tasks of all users."""
        self._idle = [await self._connect() for _ in range(CONNECTIONS)]
        async with asyncio.TaskGroup() as group:
            for mine in users:
                group.create_task(self._user(mine))
        for link in self._idle:
            link.close()

    async def _connect(self) -> Link:
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(
            lambda: Link(self._answered), "127.0.0.1", self._port
        )
        return link

    async def _user(self, mine: list[Work]) -> None:
        for work in mine:
            await asyncio.sleep(work.think_s)
            began_s = time.monotonic()
            await self._ask(work.first)
            async with asyncio.TaskGroup() as group:
                for calls in work.children:
                    group.create_task(self._child(calls))
            await self._ask(work.second)
            self.took_s.append(time.monotonic() - began_s)

    async def _child(self, calls: list[Call]) -> None:
        for call in calls:
            await self._ask(call)

    async def _ask(self, call: Call) -> None:
        link = self._idle.pop() if self._idle else await self._connect()
        answered = self._waiting[link] = asyncio.get_running_loop().create_future()
        sent_s = time.monotonic()
        link.send(call.data)
        answer = await answered
        if answer.status != 200 or not answer.whole:
            raise BenchError(f"{call.name}: status {answer.status}: {bytes(link.body[:300])!r}")
        usage = msgspec.json.decode(link.body, type=Told).usage
        cached_tokens = usage.prompt_tokens_details["cached_tokens"]
        self.done.append(Done(call, sent_s, cached_tokens))
        if link.reusable:
            self._idle.append(link)

    def _answered(self, link: Connection, answer: Answer) -> None:
        answered = self._waiting.pop(link, None)
        if answered is not None and not answered.done():
            answered.set_result(answer)


class Outcome(msgspec.Struct, frozen=True):
    """added_…_ms: of all requests, from sending to the replica having the body; last: of each
    burst the last one's, the mean. queued_ms: in the replicas' queues, the mean of all requests.
    prefixes: how often what siblings share was computed, for each parent."""

    requests: int
    added_p50_ms: float | None
    added_p99_ms: float | None
    added_max_ms: float
    last_ms: float | None
    queued_ms: float
    prefixes: float | None
    took_mean_s: float


def _read_s(log: Path) -> dict[str, float]:
    """When a replica had each request's body, by its id."""
    lines = (line.split() for line in log.read_text(encoding="ascii").splitlines())
    return {name: float(read_s) for _, name, read_s in lines}


def _bursts(done: list[Done], added_ms: dict[str, float]) -> Iterator[float]:
    """Of each parent's first turns of sub-agents the last one's time."""
    last: dict[int, float] = {}
    for one in done:
        if one.call.shared:
            parent = one.call.parent
            last[parent] = max(last.get(parent, 0.0), added_ms[one.call.name])
    yield from last.values()


def _prefixes(done: list[Done], tokenizer: Tokenizer) -> float | None:
    """How often siblings' common beginning was computed, in the mean of all parents."""
    times: dict[int, float] = {}
    for one in done:
        if one.call.shared:
            shared = len(tokenizer.encode(one.call.shared, add_special_tokens=False)) // 4
            # A block that is only in part common is nobody's to share.
            missed = max(shared - one.cached_tokens - 2 * BLOCK_TOKENS, 0)
            times[one.call.parent] = times.get(one.call.parent, 0.0) + missed / shared
    return fmean(times.values()) if times else None


def _replica_queue_s(ports: Sequence[int]) -> float:
    """Seconds that requests have spent in the replicas' queues, in all."""
    name = "vllm:request_queue_time_seconds_sum"
    return sum(
        value for port in ports for (sample, _), value in samples(port).items() if sample == name
    )


def crowd(
    front: Proxy, ports: Sequence[int], log: Path, users: list[list[Work]], tokenizer: Tokenizer
) -> Outcome:
    """One crowd to its end."""
    queued_s = _replica_queue_s(ports)
    told = Crowd(front.port)
    try:
        uvloop.run(told.run(users))
    except* (BenchError, OSError) as failures:
        raise BenchError(f"a request failed: {failures.exceptions[0]}") from None
    queued_s = _replica_queue_s(ports) - queued_s
    read_s = _read_s(log)
    added_ms = {one.call.name: 1e3 * (read_s[one.call.name] - one.sent_s) for one in told.done}
    lasts = list(_bursts(told.done, added_ms))
    values = list(added_ms.values())
    count = len(told.done)
    return Outcome(
        count,
        quantile(values, 0.5),
        quantile(values, 0.99),
        max(values),
        fmean(lasts) if lasts else None,
        1e3 * queued_s / count,
        _prefixes(told.done, tokenizer),
        fmean(told.took_s),
    )


def measure(count: int, *, header: bool, forward: bool) -> dict[str, Outcome]:
    """All crowds, one after the other, on one fleet that forgets nothing."""
    tokenizer = Tokenizer.load(MODEL, MODEL_FOLDER)
    first = free_ports(REPLICAS)
    ports = range(first, first + REPLICAS)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    extra = ("--tokens-forward-tokens", "all" if forward else "completions")
    with tempfile.TemporaryDirectory(prefix="bench-agents-") as folder:
        log = Path(folder) / "executions"
        argv = module(
            "tokenlane", "simulate", "--replicas", str(REPLICAS), "--port", str(ports[0]),
            "--prefill-tokens-per-s", str(PREFILL_TOKENS_PER_S),
            "--token-interval-s", str(TOKEN_INTERVAL_S), "--execution-log", str(log),
        )  # fmt: skip
        with Process("simulate", argv) as fleet:
            for port in ports:
                fleet.wait_listening(port)
            with gateway(urls, None, *extra, plain=True) as front:
                assert front.admin_port is not None
                wait_known(front.admin_port)
                made = {}
                # The first is to warm up.
                for seed, (users, subs) in enumerate([(2, 2), *CROWDS]):
                    maker = Maker(seed, header=header)
                    tasks = tasks_of(users, subs, count, seed)
                    works = [[maker.work(task) for task in mine] for mine in tasks]
                    say(f"{users} x {subs}, parents {'named' if header else 'not named'}")
                    made[f"{users} x {subs}"] = crowd(front, ports, log, works, tokenizer)
    return {name: one for name, one in made.items() if name != "2 x 2"}


def show(made: dict[str, Any]) -> str:
    """One table."""
    columns = [
        "published ms", "requests", "added p50 ms", "p99", "max", "last of a burst",
        "replica's queue ms", "prefix computed", "parent done s",
    ]  # fmt: skip
    published = {f"{u} x {a}": ms for (u, a), ms in PUBLISHED_MS.items()}
    rows: list[list[Cell]] = [
        [
            f"{name}: {way}", published[name], one.requests, one.added_p50_ms, one.added_p99_ms,
            one.added_max_ms, one.last_ms, one.queued_ms, one.prefixes, one.took_mean_s,
        ]
        for way, crowds in made["ways"].items()
        for name, one in crowds.items()
    ]  # fmt: skip
    return "\n".join(
        [machine.describe(made["machine"]), "", table(["users x sub-agents", *columns], rows)]
    )


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench agent_sockets")
    parser.add_argument("--tasks", type=int, default=1, help="of each user")
    parser.add_argument("--forward", action="store_true", help="chats go to the replicas as ids")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    facts = machine.facts()
    try:
        ways = {
            name: measure(options.tasks, header=header, forward=options.forward)
            for name, header in (("parents named", True), ("not named", False))
        }
    except BenchError as error:
        sys.exit(str(error))
    made = {"machine": facts, "tasks": options.tasks, "ways": ways}
    print(json.dumps(msgspec.to_builtins(made), indent=1) if options.json else show(made))


if __name__ == "__main__":
    main()

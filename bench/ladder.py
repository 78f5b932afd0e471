"""The tokenization ladder in process: what ids cost, where they are made, and what the loop feels.

    python -m bench.ladder [--tokenizers DIR] [--models A,B] [--seconds 4] [--json FILE]

Three tables, each for every model under DIR (a folder with tokenizer.json per model; without DIR
the demo model), all with a ChatML template:

- price: CPU per request on the loop and off it, for a prompt never seen, the same again, and the
  next turn of its conversation (100 turns of a hundredth of the length each);
- load: prompts of 4k tokens, each new, offered at a share of what the threads can do, with short
  prompts beside them: which rungs took them, and how long the short ones waited;
- lateness of the loop while prompts of 100k tokens are fed back to back, beside inline `encode`.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from bench import machine, workload
from bench.processes import say
from bench.report import finish
from bench.statistics import Cell, quantile, table
from proxy.body import ChatBody, Kind, inspect
from proxy.model import FleetState, Prompt, ReplicaState, Rung
from proxy.routing.decision import Query
from proxy.routing.lease import LocalBoard
from proxy.routing.router import Router
from proxy.settings import RoutingSettings, TokenSettings
from proxy.tokens.service import Outcome, TokenService
from proxy.tokens.tokenizer import Tokenizer, demo_folder

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES_TOKENS = (1_000, 4_000, 16_000, 100_000)
TURNS = 100
LOAD_TOKENS = 4_000
SHARES = (0.1, 0.5, 1.0, 3.0)
BLOCK_TOKENS = 16
# English words as the workload makes them.
CHARS_PER_TOKEN = 5.0
_BEAT_S = 0.001


def chatml(folder: Path, into: Path) -> Path:
    """The model's tokenizer with the bench's own template."""
    into.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            (into / name).symlink_to((folder / name).resolve())
    (into / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    return into


def conversation(tokens: int, turns: int, seed: int) -> list[dict[str, str]]:
    """Messages of about so many tokens in all; the seed opens the first, so that none is alike."""
    chars = int(tokens * CHARS_PER_TOKEN / turns)
    roles = ("user", "assistant")
    return [
        {"role": roles[turn % 2], "content": f"{seed} {turn} {workload.text(chars, seed + turn)}"}
        for turn in range(turns)
    ]


def raw(messages: list[dict[str, str]]) -> bytes:
    """The body of a chat request."""
    return json.dumps({"model": "m", "messages": messages}).encode()


def ladder(tokenizer: Tokenizer) -> TokenService:
    """A worker's ladder with this one model, as its settings are by default."""
    return TokenService(TokenSettings(), {"m": tokenizer}, BLOCK_TOKENS)


async def ids_of(service: TokenService, body: bytes) -> Outcome:
    """What the gateway does with a body until it is routed."""
    request = inspect(Kind.CHAT, body)
    assert isinstance(request, ChatBody)
    return await service.prompt("m", request)


# -- price -----------------------------------------------------------------------------------------


async def cost_us(service: TokenService, body: bytes) -> tuple[float, float, str]:
    """CPU of one request: on the loop, in other threads, and its rung."""
    loop_s, all_s = time.thread_time(), time.process_time()
    outcome = await ids_of(service, body)
    loop_s, all_s = time.thread_time() - loop_s, time.process_time() - all_s
    return loop_s * 1e6, max(0.0, all_s - loop_s) * 1e6, outcome.rung.value


async def prices(tokenizer: Tokenizer, repeats: int) -> list[dict[str, Any]]:
    """Medians for each size and kind of request."""
    service = ladder(tokenizer)
    rows = []
    for tokens in SIZES_TOKENS:
        measured: dict[str, list[tuple[float, float, str]]] = {}
        for repeat in range(repeats + 1):
            messages = conversation(tokens, TURNS, 1000 * tokens + repeat * TURNS)
            longer = conversation(tokens, TURNS + 2, 1000 * tokens + repeat * TURNS)
            asked = {
                "new": raw(messages),
                "repeated": raw(messages),
                "next turn": raw(messages + longer[TURNS:]),
            }
            for kind, body in asked.items():
                cost = await cost_us(service, body)
                if repeat:  # the first one warms the encoder
                    measured.setdefault(kind, []).append(cost)
        for kind, costs in measured.items():
            rows.append(
                {
                    "tokens": tokens,
                    "kind": kind,
                    "loop_us": statistics.median(one[0] for one in costs),
                    "off_us": statistics.median(one[1] for one in costs),
                    "rungs": sorted({one[2] for one in costs}),
                }
            )
    service.close()
    return rows


# -- load ------------------------------------------------------------------------------------------


async def under_load(tokenizer: Tokenizer, seconds_s: float) -> list[dict[str, Any]]:
    """Rungs by offered load, and the wait of short prompts beside it."""
    service = ladder(tokenizer)
    seed = 0
    costs = []
    for seed in range(8):
        _, off_us, _ = await cost_us(service, raw(conversation(LOAD_TOKENS, 8, seed * 100)))
        costs.append(off_us)
    per_s = 1e6 / statistics.median(costs[2:])
    rows = []
    for share in SHARES:
        count = max(4, int(per_s * share * seconds_s))
        # Made before the clock runs: the bench must not hold the loop that it measures.
        long = [raw(conversation(LOAD_TOKENS, 8, 10**6 + (seed + n) * 100)) for n in range(count)]
        seed += count
        short = [raw(conversation(200, 1, 10**8 + seed + n)) for n in range(int(seconds_s * 50))]
        seed += len(short)
        rungs: Counter[str] = Counter()
        waits: list[float] = []
        late: list[float] = []
        with lateness(late):
            await asyncio.gather(
                _arrivals(service, long, seconds_s, rungs, None),
                _arrivals(service, short, seconds_s, None, waits),
            )
        answered = sum(rungs.values())
        rows.append(
            {
                "share": share,
                "offered_per_s": count / seconds_s,
                "rungs": {rung: n / count for rung, n in sorted(rungs.items())},
                "lost": count - answered + len(short) - len(waits),
                "short_p99_ms": _ms(quantile(waits, 0.99)),
                "late_p999_ms": _ms(quantile(late, 0.999)),
            }
        )
    service.close()
    return rows


async def _arrivals(
    service: TokenService,
    bodies: list[bytes],
    seconds_s: float,
    rungs: Counter[str] | None,
    waits: list[float] | None,
) -> None:
    """Bodies at even times, whether or not earlier ones are done."""
    began_s = time.monotonic()

    async def one(body: bytes) -> None:
        asked_s = time.monotonic()
        outcome = await ids_of(service, body)
        if rungs is not None:
            rungs[outcome.rung.value] += 1
        if waits is not None:
            waits.append(time.monotonic() - asked_s)

    async with asyncio.TaskGroup() as group:
        for number, body in enumerate(bodies):
            due_s = began_s + seconds_s * number / len(bodies)
            if (left_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(left_s)
            group.create_task(one(body))


# -- lateness --------------------------------------------------------------------------------------


@contextmanager
def lateness(late: list[float]) -> Iterator[None]:
    """Collects how late a 1 ms beat of the running loop was, in seconds."""
    loop = asyncio.get_running_loop()
    due_s = 0.0
    handle: asyncio.TimerHandle | None = None

    def beat() -> None:
        nonlocal due_s, handle
        now_s = time.monotonic()
        if due_s:
            late.append(max(0.0, now_s - due_s))
        due_s = now_s + _BEAT_S
        handle = loop.call_later(_BEAT_S, beat)

    beat()
    try:
        yield
    finally:
        if handle is not None:
            handle.cancel()


async def back_to_back(
    tokenizer: Tokenizer, reference: Tokenizer, seconds_s: float
) -> list[dict[str, Any]]:
    """Lateness with the ladder, and with the loop encoding by itself, as most do: with the
    reference engines."""
    bodies = [raw(conversation(100_000, TURNS, 10**9 + n * 1000)) for n in range(8)]
    service = ladder(tokenizer)

    async def by_ladder(body: bytes) -> None:
        await ids_of(service, body)

    async def inline(body: bytes) -> None:
        request = inspect(Kind.CHAT, body)
        assert isinstance(request, ChatBody)
        reference.chat_ids(request)
        await asyncio.sleep(0)

    async def nothing(_body: bytes) -> None:
        await asyncio.sleep(0.01)

    rows = []
    for name, feed in (("nothing", nothing), ("ladder", by_ladder), ("inline", inline)):
        late: list[float] = []
        count = 0
        until_s = time.monotonic() + seconds_s
        with lateness(late):
            while time.monotonic() < until_s:
                if name == "ladder":
                    service.cache.clear()  # every prompt is new to the whole-request cache
                await feed(bodies[count % len(bodies)])
                count += 1
        rows.append(
            {
                "feed": name,
                "prompts": count,
                **{
                    f"p{share:g}": _ms(quantile(late, share / 100)) for share in (50, 99, 99.9, 100)
                },
            }
        )
    service.close()
    return rows


# -- a hop and a decision --------------------------------------------------------------------------


async def hop_us(count: int = 2000) -> float:
    """Wall time of handing nothing to a thread and back, as the published figure counts it."""
    loop = asyncio.get_running_loop()
    times = []
    for _ in range(count):
        began_s = time.perf_counter()
        await loop.run_in_executor(None, int)
        times.append(time.perf_counter() - began_s)
    return statistics.median(times) * 1e6


def decision_us(tokens: int = 100_000, replicas: int = 8, count: int = 500) -> float:
    """One decision for a prompt of this length that all replicas know in part."""
    router = Router(RoutingSettings(), LocalBoard())
    states = [
        ReplicaState(id=f"r{n}", slot=n, url="", up=True, models=("m",), block_tokens=BLOCK_TOKENS)
        for n in range(replicas)
    ]
    router.update(FleetState(1, tuple(states)))
    hashes = random.Random(1).randbytes(8 * (tokens // BLOCK_TOKENS))
    for slot in range(replicas):
        router.learn(slot, hashes[: len(hashes) * (slot + 1) // (8 * replicas) * 8])
    query = Query.of(Prompt((bytes(4 * tokens),), hashes, BLOCK_TOKENS, tokens))
    among = router.eligible("m", 0.0)
    return _each_us(lambda: router.decide(query, among), count)


def _each_us(run: Callable[[], object], count: int) -> float:
    began_s = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - began_s) / count * 1e6


def _ms(seconds_s: float | None) -> float | None:
    return None if seconds_s is None else seconds_s * 1e3


# -- report ----------------------------------------------------------------------------------------


def run(folders: dict[str, Path], seconds_s: float, repeats: int) -> dict[str, Any]:
    """All of it, ready for JSON."""
    models = {}
    with tempfile.TemporaryDirectory(prefix="bench-ladder-") as made:
        for name, folder in folders.items():
            say(f"ladder, {name}: loading")
            path = chatml(folder, Path(made) / name)
            tokenizer, reference = (
                Tokenizer.load(name, path),
                Tokenizer.load(name, path, fast=False),
            )
            say(f"ladder, {name}: prices")
            price = uvloop.run(prices(tokenizer, repeats))
            say(f"ladder, {name}: load")
            load = uvloop.run(under_load(tokenizer, seconds_s))
            say(f"ladder, {name}: lateness")
            late = uvloop.run(back_to_back(tokenizer, reference, seconds_s))
            models[name] = {
                "tokenizer": f"{tokenizer!r} {tokenizer.fast.encoder} {tokenizer.fast.template}",
                "prices": price,
                "load": load,
                "lateness": late,
            }
    return {
        "bench": "ladder",
        "machine": machine.facts(),
        "models": models,
        "hop_us": uvloop.run(hop_us()),
        "decision_us": decision_us(),
    }


def show(result: dict[str, Any]) -> str:
    """The tables."""
    lines = [machine.describe(result["machine"])]
    names = [rung.value for rung in Rung]
    for model, got in result["models"].items():
        price: list[list[Cell]] = [
            [
                f"{one['tokens']:,} {one['kind']}",
                one["loop_us"],
                one["off_us"],
                one["loop_us"] + one["off_us"],
                ", ".join(one["rungs"]),
            ]
            for one in got["prices"]
        ]
        load: list[list[Cell]] = [
            [
                f"{one['share']:g} x",
                one["offered_per_s"],
                *(one["rungs"].get(name, 0.0) or None for name in names),
                one["lost"],
                one["short_p99_ms"],
                one["late_p999_ms"],
            ]
            for one in got["load"]
        ]
        late: list[list[Cell]] = [
            [one["feed"], one["prompts"], one["p50"], one["p99"], one["p99.9"], one["p100"]]
            for one in got["lateness"]
        ]
        lines += [
            "",
            f"{model}: {got['tokenizer']}",
            "",
            table(["tokens, prompt", "loop us", "off us", "CPU us", "rungs"], price),
            "",
            table(
                ["offered", "per s", *names, "lost", "short p99 ms", "late p99.9 ms"],
                load,
            ),
            "",
            table(["fed with", "prompts", "late p50 ms", "p99", "p99.9", "max"], late),
        ]
    lines += [
        "",
        f"a hop to a thread and back: {result['hop_us']:.0f} us (published: 50 to 200 us)",
        f"a routing decision, 8 replicas, 100k tokens: {result['decision_us']:.0f} us",
        "(published: 10 us, beside 10.6 ms of encode)",
    ]
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.ladder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tokenizers", type=Path, help="a folder of model folders")
    parser.add_argument("--models", help="names of those folders, comma-separated (all)")
    parser.add_argument("--seconds", type=float, default=4.0, help="per load and feed (4)")
    parser.add_argument("--repeats", type=int, default=5, help="per price (5)")
    parser.add_argument("--json", type=Path, help="write the result there too")
    options = parser.parse_args()
    folders = {"demo": demo_folder()}
    if options.tokenizers is not None:
        found = sorted(path.parent for path in options.tokenizers.glob("*/tokenizer.json"))
        wanted = options.models.split(",") if options.models else [path.name for path in found]
        folders = {path.name: path for path in found if path.name in wanted}
        if not folders:
            parser.error(f"{options.tokenizers}: no folder with a tokenizer.json of that name")
    finish(lambda: run(folders, options.seconds, options.repeats), show, options.json)


if __name__ == "__main__":
    main()

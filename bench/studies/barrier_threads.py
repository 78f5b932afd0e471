"""The preprocessing barrier under threads and processes: batches of 64 requests.

    python -m bench barrier_threads [--smoke | --full]

64 requests of 1,000 tokens, rendered and encoded by 1 to 64 threads and by 1 to 4 processes, with
every engine of the demo model. A template in Python holds the GIL, and so does `encode`;
`encode_batch_fast`, fastokens and minijinja's rendering do or do not: the speed-up says it.
Published are two tables that disagree on templates: 542 -> 134 ms for a batch over 1 to 64 threads,
and a speed-up of 0.8 x at 16 threads. A process gets JSON and returns text or packed ids.
"""

import os
import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

from bench.loads import workload
from bench.studies.barrier_request import size_of
from bench.tools import machine
from bench.tools.command_line import Options, main
from bench.tools.demo_model import MODEL_FOLDER
from bench.tools.engines import BATCH, ENCODE, JINJA, Engines, fields_of
from bench.tools.finding import Beside, Finding, Plot, Series, Shape, Table, milliseconds, times
from bench.tools.processes import say
from bench.tools.statistics import Cell

REQUESTS, TOKENS, TURNS = 64, 1_000, 8
THREADS = (1, 2, 4, 8, 16, 32, 64)
PROCESSES = (1, 2, 4)
AT_THREADS = 16
Work = Callable[[bytes], object]

_engines: dict[str, Engines] = {}


def prepare() -> Engines:
    """The demo model's engines, loaded once in each process."""
    if not _engines:
        _engines["demo"] = Engines("demo", MODEL_FOLDER)
    return _engines["demo"]


def work_of(name: str) -> Work:
    """What one request costs: `template, jinja2` renders, `tokenize, fastokens` encodes."""
    stage, engine = name.split(", ")
    engines = prepare()
    if stage == "template":
        render = engines.templates[engine]
        return lambda body: render(fields_of(body))
    encode = engines.encoders[engine]
    return lambda text: encode(text.decode())


def in_process(job: tuple[str, list[bytes]]) -> list[object]:
    """Some of a batch, in a process: what comes back is text or packed ids."""
    name, bodies = job
    work = work_of(name)
    made = [work(body) for body in bodies]
    return [array("I", one).tobytes() if isinstance(one, list) else one for one in made]


def batch_ms(pool: Executor, work: Work, inputs: Sequence[bytes], repeats: int) -> float:
    """Median wall time of a batch over a pool of threads, a request a job."""
    taken = []
    for _ in range(repeats + 1):
        began_s = time.perf_counter()
        list(pool.map(work, inputs))
        taken.append((time.perf_counter() - began_s) * 1e3)
    return statistics.median(taken[1:])


def over_processes(count: int, inputs: dict[str, list[bytes]], repeats: int) -> dict[str, float]:
    """The same over processes, each with its share of the batch; by engine."""
    spent = {}
    context = get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=prepare) as pool:
        for name, given in inputs.items():
            shares = [(name, given[start::count]) for start in range(count)]
            taken = []
            for _ in range(repeats + 2):  # the first ones start processes and fill caches
                began_s = time.perf_counter()
                list(pool.map(in_process, shares))
                taken.append((time.perf_counter() - began_s) * 1e3)
            spent[name] = statistics.median(taken[2:])
    return spent


def run(options: Options) -> Finding:
    """All engines over all pools."""
    facts = machine.facts()
    threads = options.pick((1, AT_THREADS), THREADS, THREADS)
    processes = options.pick((1,), PROCESSES, PROCESSES)
    repeats = options.pick(1, 3, 25)
    engines = prepare()
    talk = workload.Conversations()
    size = size_of(engines, TOKENS)
    bodies = [talk.body(size, TURNS, f"batch {n}") for n in range(REQUESTS)]
    texts = [engines.templates[JINJA](fields_of(body)).encode() for body in bodies]
    inputs = {f"template, {name}": bodies for name in engines.templates}
    inputs |= {f"tokenize, {name}": texts for name in engines.encoders}
    got: dict[str, dict[str, float]] = {}
    for name, given in inputs.items():
        say(f"  barrier_threads, {name}")
        got[name] = {}
        for count in threads:
            with ThreadPoolExecutor(count) as pool:
                got[name][_threads(count)] = batch_ms(pool, work_of(name), given, repeats)
    for count in processes:
        say(f"  barrier_threads, {_processes(count)}")
        for name, spent in over_processes(count, inputs, repeats).items():
            got[name][_processes(count)] = spent
    return finding(facts, got, threads, processes)


def _threads(count: int) -> str:
    return f"{count} threads" if count > 1 else "1 thread"


def _processes(count: int) -> str:
    return f"{count} processes" if count > 1 else "1 process"


def finding(
    facts: dict[str, Any],
    got: dict[str, dict[str, float]],
    threads: tuple[int, ...],
    processes: tuple[int, ...],
) -> Finding:
    """The batches in milliseconds, the speed-ups, and what the template does."""
    pools = [*map(_threads, threads), *map(_processes, processes)]
    rows: list[list[Cell]] = [[name, *(by.get(pool) for pool in pools)] for name, by in got.items()]
    faster: list[list[Cell]] = [
        [name, *(by["1 thread"] / by[pool] if pool in by else None for pool in pools[1:])]
        for name, by in got.items()
    ]
    cores = len(os.sched_getaffinity(0))
    last, at = _threads(threads[-1]), _threads(AT_THREADS)
    template, holds, frees = (
        got[name] for name in (f"template, {JINJA}", f"tokenize, {ENCODE}", f"tokenize, {BATCH}")
    )
    up = {name: by["1 thread"] / by[at] for name, by in got.items()}
    template_up = up[f"template, {JINJA}"]
    series = [
        Series(name, [(float(count), by["1 thread"] / by[_threads(count)]) for count in threads])
        for name, by in got.items()
    ]
    return Finding(
        name="barrier_threads",
        title=f"batches of {REQUESTS} requests over threads and processes, {cores} cores",
        machine=facts,
        settings={"requests": REQUESTS, "tokens": TOKENS, "turns": TURNS},
        tables=[
            Table("milliseconds a batch", ["engine", *pools], rows),
            Table("times as fast as one thread", ["engine", *pools[1:]], faster),
        ],
        plots=[Plot(title="speed-up by threads", x="threads", y="x", series=series, log="x")],
        published=[
            Beside(f"template, 1 -> {threads[-1]} threads", milliseconds(542.0, 134.0),
                   milliseconds(template["1 thread"], template[last])),
            Beside(f"tokenize, 1 -> {threads[-1]} threads", milliseconds(286.0, 83.0),
                   milliseconds(frees["1 thread"], frees[last])),
            Beside(f"template at {AT_THREADS} threads", "0.8 x", times(template_up, 1.0)),
            Beside(f"tokenize at {AT_THREADS} threads", "6.8 x",
                   times(up[f"tokenize, {BATCH}"], 1.0)),
        ],
        shapes=[
            Shape("threads do not speed up a template in Python (published: 0.8 x at 16)",
                  template_up < 1.25, f"jinja2 {times(template_up, 1.0)}"),
            Shape("threads speed up an encoder that releases the GIL, as far as there are cores",
                  up[f"tokenize, {BATCH}"] > 0.6 * min(cores, AT_THREADS),
                  f"encode_batch_fast {times(up[f'tokenize, {BATCH}'], 1.0)} on {cores} cores"),
        ],
        remarks=[
            "of the two published tables on templates, "
            + ("the one without a speed-up (0.8 x) is what is seen here"
               if template_up < 1.25 else "the one with a speed-up (542 -> 134 ms) is seen here"),
            f"`encode` holds the GIL: {times(holds['1 thread'], holds[at])} at {AT_THREADS}",
        ],
        numbers={f"{name} at 16": value for name, value in up.items()},
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "barrier_threads")

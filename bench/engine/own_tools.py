"""Template, tokenize and collate with transformers and torch themselves, beside our engines.

    python -m bench own_tools [--tokenizers DIR] [--quick | --full]

The published experiments on the preprocessing barrier with the tools that they were made with:
`apply_chat_template`, the tokenizer as transformers calls it, and torch's tensors, in the Python
that has vLLM; and ours on the same chats. One request of 1,000 tokens; 100,000 tokens over 1 to 100
turns; batches of 64 over threads. Qwen3's tokenizer and template are used where `--tokenizers` (or
`shared/tokenizers` beside the project) has them; else the demo model's stand in, and it says so.
"""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from bench.loads import workload
from bench.studies.barrier_request import history, size_of, stages
from bench.studies.barrier_threads import Work, batch_ms
from bench.tools import hf_stages, machine
from bench.tools.command_line import Options, main
from bench.tools.demo_model import MODEL_FOLDER
from bench.tools.engines import FASTOKENS, JINJA, MINIJINJA, Encode, Engines, Render, fields_of
from bench.tools.finding import Beside, Finding, Plot, Series, Shape, Table, milliseconds, times
from bench.tools.paths import ROOT
from bench.tools.processes import BenchError, say
from bench.tools.statistics import Cell, ratio
from bench.tools.vllm_server import ENVIRONMENT, python

QWEN, BESIDE = "qwen3", ROOT.parent / "shared" / "tokenizers"
SKIPPED = "Qwen3's tokenizer is not here (--tokenizers DIR): skipped, the demo model stands in"
REQUEST_TOKENS, REQUEST_TURNS, HISTORY_TOKENS = 1_000, 4, 100_000
BATCH, AT_THREADS = 64, 16
PUBLISHED_MS = {"template": 0.5, "tokenize": 0.7, "collate": 0.03}
PUBLISHED_TAX_MS = (11.8, 58.7)
PUBLISHED_BATCH_MS = {"template": (542.0, 134.0), "tokenize": (286.0, 83.0)}
PUBLISHED_UP = {"template": 0.8, "tokenize": 6.8}


class Spent(msgspec.Struct, frozen=True):
    """What `hf_stages` says: medians in ms."""

    versions: dict[str, str]
    one: dict[str, float]
    histories: dict[str, dict[str, float]]
    batch: dict[str, dict[str, float]]


def model(options: Options) -> tuple[str, Path, list[str]]:
    """Return the model's name and folder, and a remark where it is not Qwen3's."""
    for folder in (options.tokenizers, BESIDE):
        if folder is not None and (folder / QWEN / "tokenizer.json").is_file():
            return QWEN, (folder / QWEN).resolve(), []
    return "demo", MODEL_FOLDER, [SKIPPED]


def theirs(asked: dict[str, Any]) -> Spent:
    """Return what transformers and torch take. Raise BenchError where they fail."""
    words = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
    argv = ["env", "-u", "PYTHONPATH", *words, str(python()), str(hf_stages.__file__)]
    done = subprocess.run(argv, input=json.dumps(asked).encode(), capture_output=True, check=False)
    if done.returncode:
        raise BenchError(f"transformers: {done.stderr.decode(errors='replace')[-1000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Spent)


def ours(
    engines: Engines, bodies: list[bytes], threads: tuple[int, ...], repeats: int
) -> dict[str, dict[str, float]]:
    """Return the medians of a batch over threads, by engine and threads."""
    texts = [engines.templates[JINJA](fields_of(body)).encode() for body in bodies]
    works: dict[str, tuple[Work, list[bytes]]] = {
        name: (rendered(render), bodies) for name, render in engines.templates.items()
    }
    works |= {name: (encoded(encode), texts) for name, encode in engines.encoders.items()}
    spent: dict[str, dict[str, float]] = {name: {} for name in works}
    for count in threads:
        with ThreadPoolExecutor(count) as pool:
            for name, (work, given) in works.items():
                spent[name][str(count)] = batch_ms(pool, work, given, repeats)
    return spent


def rendered(render: Render) -> Work:
    """Return the work of one request's template."""
    return lambda body: render(fields_of(body))


def encoded(encode: Encode) -> Work:
    """Return the work of encoding one text."""
    return lambda text: encode(text.decode())


def run(options: Options) -> Finding:
    """Measure all three experiments by both sets of tools."""
    facts = machine.facts()
    name, folder, remarks = model(options)
    engines = Engines(name, folder)
    turns = options.pick((1, 10), (1, 10, 100), (1, 5, 10, 25, 50, 100))
    threads = options.pick((1, AT_THREADS), (1, AT_THREADS, 64), (1, 2, 4, 8, AT_THREADS, 32, 64))
    repeats = options.pick(2, 5, 30)
    talk = workload.Conversations()

    def chat(tokens: int, count: int, nonce: str) -> list[dict[str, str]]:
        said = talk.messages(size_of(engines, tokens), count, nonce)
        return [{"role": role, "content": content} for role, content in said]

    batch = [chat(REQUEST_TOKENS, 8, f"batch {n}") for n in range(BATCH)]
    say(f"  own_tools, transformers and torch, {name}")
    spent = theirs({
        "folder": str(folder), "repeats": repeats, "threads": threads, "batch": batch,
        "one": chat(REQUEST_TOKENS, REQUEST_TURNS, "baseline"),
        "histories": {count: chat(HISTORY_TOKENS, count, "history") for count in turns},
    })  # fmt: skip
    say(f"  own_tools, ours, {name}")
    one = stages(engines, repeats * 10)
    tax = {str(count): history(engines, count, repeats) for count in turns}
    size = size_of(engines, REQUEST_TOKENS)
    over = ours(engines, [talk.body(size, 8, f"batch {n}") for n in range(BATCH)], threads, repeats)
    return finding(facts, name, spent, (one, tax, over), remarks)


def finding(
    facts: dict[str, Any],
    name: str,
    spent: Spent,
    own: tuple[dict[str, float], dict[str, dict[str, float]], dict[str, dict[str, float]]],
    remarks: list[str],
) -> Finding:
    """Return the tables, the published figures beside both, and the shapes by their tools."""
    one, tax, over = own
    both = {f"transformers and torch, {stage}": value for stage, value in spent.one.items()}
    both |= {f"ours, {stage}": value for stage, value in one.items()}
    both_rows: list[list[Cell]] = [[stage, value] for stage, value in both.items()]
    tax_rows: list[list[Cell]] = [
        [turns, by["template"], by["tokenize"], by["collate"], tax[turns][JINJA],
         tax[turns].get(MINIJINJA), tax[turns].get(FASTOKENS)]
        for turns, by in spent.histories.items()
    ]  # fmt: skip
    counts = list(spent.batch["template"])
    batches = {f"transformers, {stage}": by for stage, by in spent.batch.items()}
    batches |= {f"ours, {engine}": by for engine, by in over.items()}
    batch_rows: list[list[Cell]] = [
        [engine, *(by[count] for count in counts), ratio(by["1"], by[str(AT_THREADS)])]
        for engine, by in batches.items()
    ]
    up = {stage: by["1"] / by[str(AT_THREADS)] for stage, by in spent.batch.items()}
    few, *_, many = spent.histories
    grown = [spent.histories[turns]["template"] for turns in (few, many)]
    quick = one.get(f"tokenize, {FASTOKENS}")
    return Finding(
        name="own_tools",
        title=f"template, tokenize and collate by transformers and torch, beside ours ({name})",
        machine=facts,
        settings={"model": name, **spent.versions},
        tables=[
            Table(f"one request of {REQUEST_TOKENS:,} tokens, ms", ["stage", "ms"], both_rows),
            Table(f"{HISTORY_TOKENS:,} tokens of history, ms",
                  ["turns", "apply_chat_template", "tokenizer", "torch collate",
                   f"ours, {JINJA}", f"ours, {MINIJINJA}", f"ours, {FASTOKENS}"], tax_rows),
            Table(f"batches of {BATCH}, ms by threads",
                  ["engine", *counts, f"times at {AT_THREADS}"], batch_rows),
        ],
        plots=[
            Plot(title=f"a batch of {BATCH} by threads", x="threads", y="ms", log="xy",
                 series=[Series(engine, [(float(count), by[count]) for count in counts])
                         for engine, by in batches.items()])
        ],
        published=[
            *(Beside(f"{stage}, one request", milliseconds(value), milliseconds(spent.one[stage]))
              for stage, value in PUBLISHED_MS.items()),
            Beside(f"template of {HISTORY_TOKENS:,} tokens, {few} -> {many} turns",
                   milliseconds(*PUBLISHED_TAX_MS), milliseconds(*grown)),
            *(Beside(f"{stage}, {BATCH} requests, 1 -> {counts[-1]} threads",
                     milliseconds(*PUBLISHED_BATCH_MS[stage]),
                     milliseconds(by["1"], by[counts[-1]]))
              for stage, by in spent.batch.items()),
            *(Beside(f"{stage} at {AT_THREADS} threads", f"{PUBLISHED_UP[stage]} x",
                     times(value, 1.0)) for stage, value in up.items()),
        ],
        shapes=[
            Shape("template and tokenize dwarf collate",
                  min(spent.one["template"], spent.one["tokenize"]) > spent.one["collate"],
                  milliseconds(*spent.one.values())),
            Shape("the same text costs more in more turns (4.97 x published)",
                  grown[1] > 1.5 * grown[0], times(grown[1], grown[0])),
            Shape("threads do not speed up transformers' template (0.8 x published)",
                  up["template"] < 1.25, times(up["template"], 1.0)),
            Shape("our encoder takes less than transformers' tokenizer for the same ids",
                  None if quick is None else quick < spent.one["tokenize"],
                  milliseconds(spent.one["tokenize"], quick)),
        ],
        remarks=[
            *remarks,
            f"transformers {spent.versions['transformers']}, torch {spent.versions['torch']}",
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "own_tools")

"""The preprocessing barrier of one request: its stages, and what a long history adds to them.

    python -m bench barrier_request [--tokenizers DIR] [--smoke | --full]

Two tables: the stages of one request of 1,000 tokens; and 100,000 tokens spread over 1 to 100
turns, where the amount of text stays and the number of its messages grows. Collating is what turns
ids into what a GPU's batch takes: packed 32-bit numbers. Medians, one thread, the same text again
and again: the encoders' own caches of words are warm.
"""

from array import array
from typing import Any

from bench.loads import workload
from bench.tools import machine
from bench.tools.command_line import Options, main
from bench.tools.engines import (
    BATCH,
    ENCODE,
    FASTOKENS,
    JINJA,
    MINIJINJA,
    Encode,
    Engines,
    Render,
    fields_of,
    loaded,
    spent_ms,
)
from bench.tools.finding import Beside, Finding, Plot, Series, Shape, Table, milliseconds, times
from bench.tools.processes import say
from bench.tools.statistics import Cell
from tokenlane.protocols import prompt_fields
from tokenlane.protocols.bodies import ChatFields

REQUEST_TOKENS, REQUEST_TURNS = 1_000, 4
HISTORY_TOKENS = 100_000
TURNS = (1, 5, 10, 25, 50, 100)
PUBLISHED_MS = {"template": 0.5, "tokenize": 0.7, "collate": 0.03}
PUBLISHED_TAX_MS = (11.8, 58.7)


def size_of(engines: Engines, tokens: int) -> int:
    """Characters of our text that make so many tokens."""
    sample = workload.text(20_000, 1)
    return round(len(sample) * tokens / engines.count(sample))


def stages(engines: Engines, repeats: int) -> dict[str, float]:
    """Milliseconds of each stage of one request, by stage and engine."""
    body = workload.Conversations().body(
        size_of(engines, REQUEST_TOKENS), REQUEST_TURNS, "baseline"
    ).decode()  # fmt: skip
    asked = fields_of(body.encode())
    spent = {"parse": spent_ms(parsed, body, repeats)}
    for name, render in engines.templates.items():
        spent[f"template, {name}"] = spent_ms(rendering(render, asked), "", repeats)
    text = engines.templates[JINJA](asked)
    for name, encode in engines.encoders.items():
        spent[f"tokenize, {name}"] = spent_ms(encode, text, repeats)
    ids: list[int] = engines.backend.encode(text, add_special_tokens=False).ids
    spent["collate, a list of ids"] = spent_ms(lambda _: array("I", ids).tobytes(), "", repeats)
    packed = array("I", ids).tobytes()
    spent["collate, packed ids"] = spent_ms(lambda _: b"".join((packed,)), "", repeats)
    return spent


def rendering(render: Render, asked: ChatFields) -> Encode:
    """The render of one request, to be timed."""
    return lambda _: render(asked)


def parsed(body: str) -> object:
    """The request's JSON, its messages decoded too."""
    return prompt_fields.value(fields_of(body.encode()).messages)


def history(engines: Engines, turns: int, repeats: int) -> dict[str, float]:
    """Milliseconds of each stage for HISTORY_TOKENS in so many turns."""
    size = size_of(engines, HISTORY_TOKENS)
    body = workload.Conversations().body(size, turns, "history").decode()
    asked = fields_of(body.encode())
    spent = {"parse": spent_ms(parsed, body, repeats)}
    for name, render in engines.templates.items():
        spent[name] = spent_ms(rendering(render, asked), "", repeats)
    text = engines.templates[JINJA](asked)
    for name in (BATCH, FASTOKENS):
        if name in engines.encoders:
            spent[name] = spent_ms(engines.encoders[name], text, max(3, repeats // 3))
    return spent


def run(options: Options) -> Finding:
    """Both tables, for every model at hand."""
    facts = machine.facts()
    models, remarks = loaded(options.models())
    turns = options.pick((1, 100), TURNS, TURNS)
    repeats = options.pick(3, 5, 50)
    one: dict[str, dict[str, float]] = {}
    tax: dict[str, dict[int, dict[str, float]]] = {}
    for name, engines in models.items():
        say(f"  barrier_request, {name}")
        one[name] = stages(engines, repeats * 20)
        tax[name] = {count: history(engines, count, repeats) for count in turns}
    return finding(facts, one, tax, remarks)


def finding(
    facts: dict[str, Any],
    one: dict[str, dict[str, float]],
    tax: dict[str, dict[int, dict[str, float]]],
    remarks: list[str],
) -> Finding:
    """The tables, the tax as curves, and whether history is taxed at all."""
    demo, taxed = one["demo"], tax["demo"]
    columns = list(dict.fromkeys(name for by in one.values() for name in by))
    stage_rows: list[list[Cell]] = [
        [name, *(by.get(name) for by in one.values())] for name in columns
    ]
    tables = [Table(f"one request of {REQUEST_TOKENS:,} tokens, ms", ["stage", *one], stage_rows)]
    for model, by in tax.items():
        names = list(next(iter(by.values())))
        rows: list[list[Cell]] = [[turns, *spent.values()] for turns, spent in by.items()]
        tables.append(
            Table(f"{HISTORY_TOKENS:,} tokens of history, {model}, ms", ["turns", *names], rows)
        )
    few, many = min(taxed), max(taxed)
    plain = [taxed[count]["parse"] + taxed[count][JINJA] for count in (few, many)]
    published = [
        Beside("template, 1,000 tokens", milliseconds(PUBLISHED_MS["template"]),
               milliseconds(demo[f"template, {JINJA}"])),
        Beside("tokenize", milliseconds(PUBLISHED_MS["tokenize"]),
               milliseconds(demo[f"tokenize, {ENCODE}"])),
        Beside("collate", milliseconds(PUBLISHED_MS["collate"]),
               milliseconds(demo["collate, a list of ids"])),
        Beside(f"history of {HISTORY_TOKENS:,} tokens, {few} -> {many} turns, parse and template",
               milliseconds(*PUBLISHED_TAX_MS), milliseconds(*plain)),
    ]  # fmt: skip
    if MINIJINJA in taxed[few]:
        quick = [taxed[count]["parse"] + taxed[count][MINIJINJA] for count in (few, many)]
        published.append(
            Beside("the same with minijinja", milliseconds(*PUBLISHED_TAX_MS), milliseconds(*quick))
        )
    series = [
        Series(name, [(float(turns), spent[name]) for turns, spent in taxed.items()])
        for name in next(iter(taxed.values()))
    ]
    order = demo[f"tokenize, {ENCODE}"] > demo["collate, a list of ids"]
    order = order and demo[f"template, {JINJA}"] > demo["collate, a list of ids"]
    return Finding(
        name="barrier_request",
        title="the preprocessing barrier: one request, and the tax on history",
        machine=facts,
        settings={"request_tokens": REQUEST_TOKENS, "history_tokens": HISTORY_TOKENS},
        tables=tables,
        plots=[
            Plot(title=f"stages of {HISTORY_TOKENS:,} tokens by number of turns (demo model)",
                 x="turns", y="ms", series=series, log="xy")
        ],
        published=published,
        shapes=[
            Shape("template and tokenize dwarf collate", order,
                  f"{demo[f'template, {JINJA}']:.2f}, {demo[f'tokenize, {ENCODE}']:.2f} and "
                  f"{demo['collate, a list of ids']:.3f} ms"),
            Shape(f"the same text costs more in more turns "
                  f"({times(PUBLISHED_TAX_MS[1], PUBLISHED_TAX_MS[0])} published)",
                  plain[1] > 1.5 * plain[0], f"parse and template {times(plain[1], plain[0])}"),
        ],
        remarks=remarks,
        numbers={"history tax": plain[1] / plain[0]},
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "barrier_request")

"""The tokenization ladder in process: what ids cost, where they are made, and what the loop feels.

    python -m bench ladder [--tokenizers DIR] [--models A,B] [--tokens 1000,4000] [--seconds 4]
                           [--json FILE]

Four tables, each for every model under DIR (a folder with tokenizer.json per model; without DIR
the demo model), with its own chat template or ChatML where it has none, and but for the second on
one core, as for a worker that has one:

- price: CPU per request on the loop and off it, for a prompt never seen, the same again, and the
  next turn of its conversation (101 messages of about a hundredth of the length each, then two
  more of that length); likewise for an agent whose turns are calls of tools in a sequence that
  no other has, the last of 102 turns;
- load: prompts of 16k tokens, each new, offered at a share of what the threads do at most, with
  short prompts beside them: which rungs took them, and how long the short ones waited;
- lateness of the loop while prompts of 100k tokens are fed back to back, beside inline `encode`.
  Own: without the time that the loop's thread stood ready and the machine gave it no CPU;
- lateness of the loop while 1 MB of hostile text per prompt is fed, as many at once as there are
  threads: no spaces, one letter, random letters, combining marks.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from bench.experiments.ladder.late import back_to_back, under_attack
from bench.experiments.ladder.offered import under_load
from bench.experiments.ladder.price import SIZES_TOKENS, decision_us, hop_us, prices
from bench.tools import machine
from bench.tools.chatml import with_template
from bench.tools.processes import one_core, say
from bench.tools.report import finish
from bench.tools.statistics import Cell, table
from tokenlane.prompt import Rung
from tokenlane.runtime import cpu_scheduling, malloc_arenas
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.tokenizer import Tokenizer

_LATE = {
    "p50": "late p50 ms",
    "p99": "p99",
    "p99.9": "p99.9",
    "p100": "max",
    "own_p99.9": "own p99.9",
}


def run(
    folders: dict[str, Path], seconds_s: float, repeats: int, sizes_tokens: Sequence[int]
) -> dict[str, Any]:
    """All of it, ready for JSON."""
    cpu_scheduling.take_soon()  # this, the heap and what is settled below: as in a worker
    malloc_arenas.use_one_arena()
    models = {}
    with tempfile.TemporaryDirectory(prefix="bench-ladder-") as made:
        for name, folder in folders.items():
            say(f"ladder, {name}: loading")
            path = with_template(folder, Path(made) / name)
            tokenizer, reference = (
                Tokenizer.load(name, path),
                Tokenizer.load(name, path, fast=False),
            )
            begin(f"ladder, {name}: prices")
            with one_core():
                price = uvloop.run(prices(tokenizer, repeats, sizes_tokens))
            begin(f"ladder, {name}: load")
            load = uvloop.run(under_load(tokenizer, seconds_s))
            begin(f"ladder, {name}: lateness")
            late = uvloop.run(back_to_back(tokenizer, reference, 3 * seconds_s))
            begin(f"ladder, {name}: hostile text")
            with one_core():
                attack = uvloop.run(under_attack(tokenizer, 3 * seconds_s))
            models[name] = {
                "tokenizer": f"{tokenizer!r} {tokenizer.fast.encoder} {tokenizer.fast.template}",
                "prices": price,
                "load": load,
                "lateness": late,
                "hostile": attack,
            }
    return {
        "bench": "ladder",
        "machine": machine.facts(),
        "models": models,
        "hop_us": uvloop.run(hop_us()),
        "decision_us": decision_us(),
    }


def begin(what: str) -> None:
    """Nothing that was left over, of the caches of ladders before, is cleared away under it."""
    say(what)
    malloc_arenas.settle()


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
            [one["feed"], one["prompts"], *(one[name] for name in _LATE)]
            for one in [*got["lateness"], *got["hostile"]]
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
            table(["fed with", "prompts", *_LATE.values()], late),
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
        prog="python -m bench ladder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tokenizers", type=Path, help="a folder of model folders")
    parser.add_argument("--models", help="names of those folders, comma-separated (all)")
    parser.add_argument(
        "--tokens",
        type=lambda given: tuple(map(int, given.split(","))),
        default=SIZES_TOKENS,
        metavar="A,B",
        help="lengths of the prompts that are priced (1000,4000,16000,100000)",
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="per load; thrice that per feed (4)"
    )
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
    finish(
        lambda: run(folders, options.seconds, options.repeats, options.tokens), show, options.json
    )


if __name__ == "__main__":
    main()

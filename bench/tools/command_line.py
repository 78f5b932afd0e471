"""The command line of an experiment or a study: its flags, its scale, and where its finding goes.

    python -m bench EXPERIMENT [--smoke | --quick | --full] [--tokenizers DIR] [--trace FILE]
                               [--arrivals FILE] [--json FILE] [--png DIR]

Invariants:
- An experiment is a function of Options to a Finding; it prints nothing on stdout by itself.
- Told to stop (SIGTERM), it unwinds: what it started is stopped before it ends.
"""

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from bench.tools import plots
from bench.tools.demo_model import MODEL_FOLDER
from bench.tools.finding import Finding, text
from bench.tools.processes import BenchError
from bench.tools.report import write_json

Scale = Literal["smoke", "short", "full"]
Picked = TypeVar("Picked")


class Options(msgspec.Struct, frozen=True):
    """What an experiment is told. tokenizers: a folder of model folders; trace: agent prompts as
    text; arrivals: times of requests."""

    scale: Scale = "short"
    tokenizers: Path | None = None
    trace: Path | None = None
    arrivals: Path | None = None

    def pick(self, smoke: Picked, short: Picked, full: Picked) -> Picked:
        """The value for this scale."""
        return {"smoke": smoke, "short": short, "full": full}[self.scale]

    @property
    def plain(self) -> bool:
        """A smoke run does not wait for the compiled build."""
        return self.scale == "smoke"

    def models(self) -> dict[str, Path]:
        """Folders of tokenizers by name: the demo model, and those at hand."""
        found: list[Path] = []
        if self.tokenizers is not None:
            found = sorted(path.parent for path in self.tokenizers.glob("*/tokenizer.json"))
            if not found:
                raise BenchError(f"{self.tokenizers}: no folder with a tokenizer.json in it")
        return {"demo": MODEL_FOLDER, **{path.name: path for path in found}}

    def argv(self) -> list[str]:
        """The flags that say the same."""
        words = [] if self.scale == "short" else [f"--{self.scale}"]
        for name in ("tokenizers", "trace", "arrivals"):
            path = getattr(self, name)
            words += [] if path is None else [f"--{name}", str(path)]
        return words


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of Options."""
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--smoke", action="store_true", help="seconds: only that it runs")
    scale.add_argument("--quick", action="store_true", help="the short form")
    scale.add_argument("--full", action="store_true", help="the long form")
    parser.add_argument("--tokenizers", type=Path, metavar="DIR", help="a folder of model folders")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="agent text trace, JSONL(.gz)")
    parser.add_argument("--arrivals", type=Path, metavar="FILE", help="arrivals, CSV(.gz)")


def options_of(parsed: argparse.Namespace, unless_told: Scale = "short") -> Options:
    """Return what add_flags was given. unless_told: the scale where no flag says one."""
    scale = unless_told
    if parsed.smoke or parsed.quick or parsed.full:
        scale = "smoke" if parsed.smoke else "short" if parsed.quick else "full"
    return Options(scale, parsed.tokenizers, parsed.trace, parsed.arrivals)


def main(run: Callable[[Options], Finding], doc: str | None, name: str) -> None:
    """Command line of one experiment. Exits with a sentence where it cannot be made here."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the finding here too")
    parser.add_argument("--png", type=Path, metavar="DIR", help="draw its plots there")
    parsed = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    try:
        found = run(options_of(parsed))
        if parsed.smoke:
            # Seconds of load say nothing about the form of a curve.
            unjudged = [msgspec.structs.replace(one, holds=None) for one in found.shapes]
            found = msgspec.structs.replace(found, shapes=unjudged)
    except BenchError as error:
        sys.exit(str(error))
    if parsed.json is not None:
        write_json(msgspec.to_builtins(found), parsed.json)
    if parsed.png is not None:
        parsed.png.mkdir(parents=True, exist_ok=True)
        plots.draw(found, parsed.png)
    print(text(found))

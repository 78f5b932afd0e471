"""`make bench`: throughput, streams and bursts, each short; tables, JSON and PNG.

    python -m bench [throughput] [streams] [bursts] [--out DIR]

Writes DIR/latest.json (bench/results by default) and one PNG per bench. For the long forms run
bench.throughput, bench.streams and bench.bursts by themselves.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import bursts, plots, streams, throughput
from bench.processes import BenchError, say
from bench.report import write_json

Run = Callable[[], dict[str, Any]]
Show = Callable[[dict[str, Any]], str]
Plot = Callable[[dict[str, Any], Path], None]

BENCHES: dict[str, tuple[Run, Show, Plot]] = {
    "throughput": (lambda: throughput.run(3, 3), throughput.show, plots.throughput),
    "streams": (lambda: streams.run(5, 3.0, 200), streams.show, plots.streams),
    "bursts": (lambda: bursts.run(10, 20, 100_000), bursts.show, plots.bursts),
}


def main() -> int:
    """Runs what was asked for; exit 1 when a bench could not be made here."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benches", nargs="*", metavar="BENCH", help=", ".join(BENCHES))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    unknown = set(options.benches) - set(BENCHES)
    if unknown:
        parser.error(f"no such bench: {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    options.out.mkdir(parents=True, exist_ok=True)
    results = {}
    failed = False
    for name in options.benches or BENCHES:
        run, show, plot = BENCHES[name]
        say(f"== {name}")
        try:
            results[name] = run()
        except BenchError as error:
            say(f"{name}: {error}")
            failed = True
            continue
        print(f"\n== {name}\n{show(results[name])}\n", flush=True)
        plot(results[name], options.out / f"{name}.png")
        write_json(results, options.out / "latest.json")
    say(f"written: {options.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

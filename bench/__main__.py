"""`make bench`: the whole laboratory. Tables, JSON, PNG, one HTML page, and a verdict.

    python -m bench [--only NAME ...] [--list] [--smoke | --full] [--out DIR]
                    [--tokenizers DIR] [--trace FILE] [--arrivals FILE]

Writes DIR/latest.json, DIR/report.html and DIR/*.png (bench/results by default). Each experiment
is runnable alone: `python -m bench.lab.burst --help`; --list says which there are.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import msgspec

from bench import machine, plots, suite, verdict
from bench.build import compiled
from bench.finding import Finding, text
from bench.lab.common import Options, add_flags, options_of
from bench.processes import BenchError, say
from bench.report import Report, page, write_json


def main() -> int:
    """Runs what was asked for; exit 1 when an experiment could not be made here."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="this one; may be repeated")
    parser.add_argument("--list", action="store_true", help="name the experiments and leave")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    add_flags(parser)
    parsed = parser.parse_args()
    if parsed.list:
        for member in suite.MEMBERS:
            print(f"{member.name:16} python -m {member.module}")
        return 0
    try:
        members = suite.chosen(parsed.only or ())
        report = run(members, options_of(parsed), parsed.out)
    except BenchError as error:
        parser.error(str(error))
    print("== verdict\n" + "\n".join(f"- {line}" for line in report.verdict), flush=True)
    say(f"written: {parsed.out}/latest.json, report.html and {len(report.findings)} PNG sets")
    return 1 if report.failed else 0


def run(members: list[suite.Member], options: Options, out: Path) -> Report:
    """The experiments, one after the other; the report is written anew after each."""
    began_s = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    facts = machine.facts()
    if not options.plain:
        compiled()
    findings: dict[str, Finding] = {}
    failed: dict[str, str] = {}
    pictures: dict[str, list[bytes]] = {}

    def report() -> Report:
        return Report(
            machine=facts,
            scale=options.scale,
            seconds=time.monotonic() - began_s,
            findings=findings,
            failed=failed,
            verdict=verdict.lines(findings, failed),
        )

    def on_end(member: suite.Member, ended: Finding | str) -> None:
        if isinstance(ended, str):
            failed[member.name] = ended
            say(f"{member.name}: {ended}")
        else:
            findings[member.name] = ended
            print(f"\n== {member.name}: {text(ended)}\n", flush=True)
            pictures[member.name] = [path.read_bytes() for path in plots.draw(ended, out)]
        made = report()
        write_json(msgspec.to_builtins(made), out / "latest.json")
        (out / "report.html").write_text(page(made, pictures), encoding="utf-8")

    left_s = options.pick(math.inf, suite.SHORT_LIMIT_S, math.inf) - (time.monotonic() - began_s)
    suite.run(members, options, suite.progress_on(None, members), on_end, left_s)
    return report()


if __name__ == "__main__":
    sys.exit(main())

"""`make bench` and `make bench-engine`: a laboratory. Tables, JSON, PNG, one HTML page, a verdict.

    python -m bench [--engine] [--only NAME ...] [--list] [--smoke | --quick | --full] [--out DIR]
                    [--tokenizers DIR] [--trace FILE] [--arrivals FILE]
    python -m bench NAME [flags]

Writes DIR/latest.json, DIR/report.html and DIR/*.png (bench/results by default, and of --engine
bench/results/engine). With a NAME, run that experiment or study alone: `python -m bench NAME
--help` lists its flags, --list the names.
"""

import argparse
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import msgspec

from bench import catalogue
from bench.tools import machine, plots, suite, verdict
from bench.tools.build import compiled
from bench.tools.command_line import Options, add_flags, options_of
from bench.tools.finding import Finding, text
from bench.tools.processes import BenchError, say
from bench.tools.report import Report, page, write_json


def main() -> int:
    """Run what was asked for. Return 1 when an experiment could not be made here."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        usage="%(prog)s [options]  or  %(prog)s NAME [flags of NAME]",
        description=__doc__,
        epilog="names: " + " ".join(catalogue.modules()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="this one; may be repeated")
    parser.add_argument("--list", action="store_true", help="list what there is and leave")
    parser.add_argument("--engine", action="store_true", help="the laboratory on real vLLM")
    parser.add_argument("--out", type=Path, metavar="DIR")
    add_flags(parser)
    if sys.argv[1:] and not sys.argv[1].startswith("-"):
        try:
            catalogue.start(sys.argv[1], sys.argv[2:])
        except BenchError as error:
            parser.error(str(error))
        return 0
    parsed = parser.parse_args()
    if parsed.list:
        print(listing())
        return 0
    laboratory = catalogue.ENGINE if parsed.engine else catalogue.BENCH
    out = parsed.out or laboratory.out
    try:
        options = options_of(parsed, laboratory.scale)
        members = laboratory.chosen(parsed.only or (), options.scale)
        report = run(laboratory, members, options, out)
    except BenchError as error:
        parser.error(str(error))
    print("== verdict\n" + "\n".join(f"- {line}" for line in report.verdict), flush=True)
    say(f"written: {out}/latest.json, report.html and {len(report.findings)} PNG sets")
    return 1 if report.failed else 0


def listing() -> str:
    """Return all names with what they do, those of the laboratories first."""
    modules = catalogue.modules()
    lines, listed = [], set()
    for target, laboratory in (("bench", catalogue.BENCH), ("bench-engine", catalogue.ENGINE)):
        names = [member.name for member in laboratory.members]
        lines += [f"run by `make {target}`, or alone by `python -m bench NAME`:"]
        lines += [f"  {name:16} {catalogue.summary(modules[name])}" for name in names] + [""]
        listed |= set(names)
    lines += ["run alone:"]
    lines += [
        f"  {name:16} {catalogue.summary(module)}"
        for name, module in modules.items()
        if name not in listed
    ]
    return "\n".join(lines)


def run(
    laboratory: suite.Laboratory, members: list[suite.Member], options: Options, out: Path
) -> Report:
    """Run the experiments one after the other. Write the report again after each."""
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
        (out / "report.html").write_text(page(made, pictures, laboratory.title), encoding="utf-8")

    # One alone starts itself what it needs.
    with laboratory.around() if len(members) > 1 else nullcontext():
        left_s = laboratory.limits_s[options.scale] - (time.monotonic() - began_s)
        suite.run(members, options, suite.progress_on(None, members), on_end, left_s)
    return report()


if __name__ == "__main__":
    sys.exit(main())

"""`make bench-docs`: the tables of docs/bench.md and docs/engine.md, each from the latest.json of
its laboratory's last run, if there is one.

    python -m bench docs [--results DIR --page FILE]

Invariants:
- What stands between the two marks is made here, and nothing outside them is touched: no figure of
  that part was ever typed.
"""

import argparse
import sys
from pathlib import Path

from bench.tools import machine, report
from bench.tools.finding import markdown
from bench.tools.paths import ENGINE_RESULTS, RESULTS, ROOT
from bench.tools.processes import BenchError
from bench.tools.report import Report

LATEST = "latest.json"
BEGIN = "<!-- made by `make bench-docs`: begin -->"
END = "<!-- made by `make bench-docs`: end -->"
PAGES = {
    RESULTS: ROOT / "docs" / "bench.md",
    ENGINE_RESULTS: ROOT / "docs" / "engine.md",
}
# A load that an idle machine has at times.
BUSY_LOAD = 1.0


def busy(made: Report) -> list[str]:
    """A warning where other work had the machine as the run began, as its load says. Later loads
    are mostly what the experiments before left."""
    load, cores = made.machine["load_1_min"], made.machine["cores"]
    if load <= BUSY_LOAD * cores:
        return []
    warning = (
        "**The machine was busy with other work**: "
        f"a load of {load:.1f} on {cores} cores as the run began. Latencies are overstated, some "
        "many times; measure on an idle machine."
    )
    return [warning, ""]


def measured_again(made: Report) -> list[str]:
    """A line about the parts that are of a later run, at another commit."""
    own = made.machine.get("commit")
    later: dict[str, list[str]] = {}
    for name, found in made.findings.items():
        if (commit := found.machine.get("commit")) != own:
            later.setdefault(f"{commit}, {found.machine['at'][:10]}", []).append(name)
    return [
        line
        for commit, names in later.items()
        for line in (f"Measured again alone, at commit {commit}: {', '.join(names)}.", "")
    ]


def section(made: Report) -> str:
    """All that is between the marks."""
    facts = machine.describe(made.machine).replace("\n", "; ")
    failed = [f"- {name}: not measured in this run ({why})" for name, why in made.failed.items()]
    again = measured_again(made)
    runs = "in several runs of the" if again else "in one run of the"
    lines = [
        BEGIN,
        "",
        (
            f"Measured {made.machine['at'][:10]} {runs} {made.scale} form, "
            f"{made.seconds / 60:.1f} minutes. {facts}."
        ),
        "",
        *busy(made),
        *again,
        "### Verdict",
        "",
        *(f"- {line}" for line in made.verdict),
        *failed,
        "",
    ]
    for found in made.findings.values():
        load = found.machine["load_1_min"]
        lines += [
            markdown(found),
            f"Load as it began, with what the part before it left: {load:.1f}.",
            "",
        ]
    return "\n".join([*lines, END])


def replaced(page: str, made: Report) -> str:
    """The page with the run's section in the place of the old one. Raises BenchError without
    marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"the page has no {BEGIN} … {END}")
    return before + section(made) + after


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench docs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, metavar="DIR", help="of another run, for --page")
    parser.add_argument("--page", type=Path, metavar="FILE")
    parsed = parser.parse_args()
    if (parsed.results is None) != (parsed.page is None):
        parser.error("--results and --page go together")
    pages = {parsed.results: parsed.page} if parsed.page else PAGES
    there = {results: page for results, page in pages.items() if (results / LATEST).exists()}
    try:
        if not there:
            raise BenchError("no run has left results: `make bench` or `make bench-engine` does")
        for results, page in there.items():
            made = report.read(results / LATEST)
            page.write_text(replaced(page.read_text(encoding="utf-8"), made), encoding="utf-8")
    except BenchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

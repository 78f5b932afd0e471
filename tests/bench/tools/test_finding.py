"""A finding says the same on a terminal, in Markdown, in HTML and in JSON."""

from pathlib import Path

import msgspec
import pytest

from bench.tools import docs, machine, plots, report
from bench.tools.finding import (
    Beside,
    Finding,
    Plot,
    Series,
    Shape,
    Table,
    bars,
    few,
    judged,
    markdown,
    milliseconds,
    text,
    times,
)
from bench.tools.processes import BenchError
from bench.tools.report import Report

FOUND = Finding(
    name="burst",
    title="misses <in> a row",
    machine=machine.facts(),
    tables=[Table("frozen | ms", ["mode", "ms"], [["wait | bail", 1.25], ["none", None]])],
    plots=[
        bars("frozen", "ms", {"wait": 0.0, "none": None, "inline": 200.0}, log="y"),
        Plot(
            title="wait", x="share", y="ms", log="xy",
            series=[Series("measured", [(0.1, 0.0), (0.9, 4.0)]), Series("empty", [])],
        ),
    ],
    published=[Beside("20 misses", "200 ms", milliseconds(190.0))],
    shapes=[Shape("it grows", True, "4 x"), Shape("it falls", False, "no"),
            Shape("it stays", None, "?")],
    remarks=["the generator & all"],
    numbers={"frozen": None},
)  # fmt: skip
MADE = Report(
    machine=FOUND.machine, scale="short", seconds=90.0, findings={"burst": FOUND},
    failed={"floor": "nginx not found"}, verdict=["caching works"],
)  # fmt: skip


def test_the_terminal_sees_all_of_it() -> None:
    shown = text(FOUND)
    for part in ("misses <in> a row", "1.25", "200 ms", "190 ms", "as published: it grows (4 x)",
                 "NOT as published: it falls", "not judged: it stays", "& all"):  # fmt: skip
        assert part in shown


def test_markdown_keeps_its_columns() -> None:
    rows = [line for line in markdown(FOUND).splitlines() if line.startswith("|")]
    assert "| wait \\| bail | 1.25 |" in rows
    assert "| none | - |" in rows
    assert "| 20 misses | 200 ms | 190 ms |" in rows


def test_the_page_is_one_file_with_plots_and_verdict(tmp_path: Path) -> None:
    drawn = plots.draw(FOUND, tmp_path)
    assert [path.name for path in drawn] == ["burst-1.png", "burst-2.png"]
    pictures = [path.read_bytes() for path in drawn]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    page = report.page(MADE, {"burst": pictures})
    assert page.count("data:image/png;base64,") == 2
    assert 'src="http' not in page
    for part in ("misses &lt;in&gt; a row", "caching works", "floor: nginx not found", "&amp; all"):
        assert part in page


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    report.write_json(msgspec.to_builtins(MADE), tmp_path / "latest.json")
    assert report.read(tmp_path / "latest.json") == MADE
    with pytest.raises(BenchError, match="no report"):
        report.read(tmp_path / "other.json")


def test_only_what_is_between_the_marks_is_written() -> None:
    page = f"before\n{docs.BEGIN}\nold\n{docs.END}\nafter\n"
    made = docs.replaced(page, MADE)
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n")
    assert "old" not in made
    assert "1.5 minutes" in made
    assert docs.replaced(made, MADE) == made
    with pytest.raises(BenchError):
        docs.replaced("no marks", MADE)


def test_parts_of_a_later_run_are_named() -> None:
    later = msgspec.structs.replace(FOUND, machine=FOUND.machine | {"commit": "abc1234"})
    assert docs.measured_again(MADE) == []
    made = msgspec.structs.replace(MADE, findings={"burst": FOUND, "beat": later})
    [said, _] = docs.measured_again(made)
    assert said.startswith("Measured again alone, at commit abc1234, ")
    assert said.endswith(": beat.")
    assert said in docs.section(made)


def test_a_busy_machine_is_said() -> None:
    idle, loaded = ({**FOUND.machine, "cores": 2, "load_1_min": load} for load in (1.2, 9.0))
    quiet = msgspec.structs.replace(FOUND, machine=idle)
    made = msgspec.structs.replace(MADE, machine=idle, findings={"burst": quiet})
    assert "busy" not in docs.section(made)
    made = msgspec.structs.replace(made, machine=loaded)
    assert "a load of 9.0 on 2 cores as the run began" in docs.section(made)
    assert "floor: not measured in this run (nginx not found)" in docs.section(made)


def test_words() -> None:
    assert [judged(one) for one in (True, False, None)] == [
        "as published", "NOT as published", "not judged",
    ]  # fmt: skip
    assert times(3.0, 2.0) == "1.50 x"
    assert times(None, 2.0) == times(1.0, 0.0) == "-"
    assert milliseconds(1.0, None) == "1.00 -> - ms"
    assert few(["a", "b", "c", "d"], 3) == ["a", "b", "c", "d"]
    assert few(list("abcde"), 3) == ["a", "b", "c", "and 2 more remarks of this kind"]

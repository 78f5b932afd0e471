"""The suite: order, budgets, progress; and two experiments for real, in seconds."""

import io
import os
import shutil
from pathlib import Path

import pytest

from bench import catalogue
from bench.tools import suite
from bench.tools.command_line import Options
from bench.tools.finding import Finding
from bench.tools.suite import Member, Progress

SMOKE = Options("smoke")


class Hasty(Member):
    """An experiment without time."""

    def budget_s(self) -> float:
        return 0.2


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self) -> bool:
        return True


def member(name: str) -> Member:
    return next(one for one in catalogue.MEMBERS if one.name == name)


def test_bars_on_a_terminal_lines_otherwise() -> None:
    plain, terminal = io.StringIO(), Terminal()
    for out in (plain, terminal):
        progress = Progress(out, 20.0)
        progress.begin(Member("one", "m", 10.0), 1, 2)
        progress.line("  half way")
        progress.tick(5.0)
        progress.end()
    assert plain.getvalue() == "== 1/2 one, about 10 s\n  half way\n"
    assert "[######..................]  25% 1/2 one 5 s  half way" in terminal.getvalue()
    assert suite.bar(2.0) == f"[{'#' * suite.BAR_CELLS}] 100%"


@pytest.mark.slow
def test_what_fails_or_overruns_costs_its_own_section_only() -> None:
    ended: dict[str, Finding | str] = {}
    members = [
        Hasty("hasty", "bench.studies.barrier_threads", 1.0),
        Member("wrong", "bench.studies.cache", 1.0),
    ]
    options = Options("smoke", trace=Path("/nonexistent/trace"))
    suite.run(
        members, options, Progress(io.StringIO(), 1.0),
        lambda one, result: ended.update({one.name: result}),
    )  # fmt: skip
    assert ended["hasty"] == "it was stopped after its budget of 0 s"
    assert ended["wrong"] == "/nonexistent/trace: cannot be read (No such file or directory)"


@pytest.mark.slow
def test_the_cache_experiment_runs() -> None:
    found = suite.run_one(member("cache"), SMOKE, Progress(io.StringIO(), 1.0))
    assert (found.numbers["hit_rate"] or 0.0) > 0.5
    assert [one.holds for one in found.shapes] == [None]
    kinds = {"request", "body", "shape", "opening", "segment", "prefix"}
    assert {row[0] for row in found.tables[1].rows} == kinds


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_ablation_runs_through_real_gateways() -> None:
    found = suite.run_one(member("ablation"), SMOKE, Progress(io.StringIO(), 1.0))
    rows = {str(row[0]).partition(",")[0]: row for row in found.tables[0].rows}
    assert str(rows["inline"][-1]).startswith("short ")
    assert "cache" in str(rows["as shipped"][-1])
    for row in rows.values():
        late_max_ms = row[3]
        assert isinstance(late_max_ms, float)
        assert late_max_ms > 0.0
        assert row[-2] == 0  # unanswered


def test_what_has_no_time_left_is_left_out() -> None:
    ended: dict[str, Finding | str] = {}
    members = [Member("late", "bench.studies.cache", 1.0)]
    suite.run(
        members, SMOKE, Progress(io.StringIO(), 1.0),
        lambda member, one: ended.update({member.name: one}), left_s=0.0,
    )  # fmt: skip
    assert ended == {"late": "it was left out: the time for all experiments was over"}

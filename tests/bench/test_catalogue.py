"""Everything that is run alone is found by its name."""

import os
import subprocess
import sys

import pytest

from bench import catalogue
from bench.tools.command_line import Scale
from bench.tools.processes import BenchError, python_path
from bench.tools.suite import SHORT_LIMIT_S, Laboratory, Member
from tests.paths import ROOT

SCALES: tuple[Scale, ...] = ("smoke", "short", "full")


def member(name: str) -> Member:
    return next(one for one in catalogue.MEMBERS if one.name == name)


def test_the_order_is_the_suites() -> None:
    chosen = catalogue.BENCH.chosen
    assert [one.name for one in chosen(["floor", "bursts"])] == ["bursts", "floor"]
    assert chosen([]) == list(catalogue.MEMBERS)
    with pytest.raises(BenchError, match="no such experiment: nope; there are ablation"):
        chosen(["nope", "floor"])


def test_the_short_form_fits_ten_minutes() -> None:
    # A minute and a half of it is the compiled build.
    assert sum(one.expected_s for one in catalogue.MEMBERS) <= SHORT_LIMIT_S - 90
    assert SHORT_LIMIT_S < 600
    assert member("floor").of("full").budget_s() > member("floor").budget_s()


def test_the_engines_parts_fit_their_times() -> None:
    parts = catalogue.ENGINE.members
    assert sum(one.expected_s for one in parts) <= catalogue.ENGINE_SHORT_S <= 20 * 60
    assert all(one.of(scale).budget_s() <= 15 * 60 for one in parts for scale in SCALES)
    # A slower machine needs a fifth more.
    assert all(1.2 * one.of("full").expected_s <= one.limit_s for one in parts)
    assert 1.2 * sum(one.of("full").expected_s for one in parts) <= 90 * 60
    assert catalogue.ENGINE.limits_s["full"] <= 90 * 60
    assert catalogue.ENGINE.chosen(["radix"])[0].module == "bench.engine.radix"


@pytest.mark.parametrize(
    ("name", "laboratory"), [("bench", catalogue.BENCH), ("engine", catalogue.ENGINE)]
)
def test_the_page_of_the_docs_knows_every_experiment(name: str, laboratory: Laboratory) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for member in laboratory.members:
        assert f"`{member.name}`" in page


def test_every_module_can_be_run() -> None:
    for name, module in catalogue.modules().items():
        text = catalogue.source(module).read_text(encoding="utf-8")
        assert 'if __name__ == "__main__":' in text, name
        assert catalogue.summary(module), name
    assert len(catalogue.modules()) > 25


def test_an_unknown_name_is_one_clear_sentence() -> None:
    with pytest.raises(BenchError, match="no such experiment: nope; there are accept_overload"):
        catalogue.start("nope", [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "name"),
    [("bench throughput", "throughput"), ("bench.throughput", "throughput"),
     ("bench.ladder", "ladder"), ("bench.routing", "routing"), ("bench.build", "build")],
)  # fmt: skip
def test_a_name_runs_its_module(words: str, name: str) -> None:
    argv = [sys.executable, "-m", *words.split(), "--help"]
    env = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert f"usage: python -m bench {name}" in done.stdout

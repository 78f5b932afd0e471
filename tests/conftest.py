"""What every test shares: the event loop is the one the gateway runs on, and no verdict depends on
how busy the machine is."""

import asyncio
import faulthandler
import logging
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from tests.held import GATE, LIMIT_S
from tests.machine import slowness, stolen_s

# What probes of tokenizers find is kept from one run to the next, and never in a developer's cache.
os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"tokenlane-tests-{os.getuid()}")

ENDING_S = 60

settings.register_profile("tokenlane", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tokenlane")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """One loop, uvloop: a second one would double the suite and prove nothing we ship."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """What a test sets up of this process' logs is undone."""
    root, raises = logging.getLogger(), logging.raiseExceptions
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], logging.raiseExceptions = handlers, raises
    root.setLevel(level)


@pytest.hookimpl(trylast=True)
def pytest_exception_interact() -> None:
    """pytest-timeout stops its clock where a test fails: what hangs in ending it would hang the run
    without a word."""
    faulthandler.dump_traceback_later(ENDING_S, exit=True)


def pytest_runtest_logfinish() -> None:
    """The test has ended."""
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """What gateways did to their loops is told in the test's report, and may fail it (row O11)."""
    stolen_before_s = stolen_s()
    GATE.take()
    try:
        result = yield
    finally:
        seen = GATE.take()
        if seen.pieces or seen.processes:
            item.user_properties.append(("held", asdict(seen)))
    if seen.longest_s > LIMIT_S:
        refusal = seen.refusal(LIMIT_S * slowness() + stolen_s() - stolen_before_s)
        assert refusal is None, refusal
    return result


def pytest_addoption(parser: pytest.Parser) -> None:
    """The long forms of the reliability tests, and those tests alone (`make reliability`)."""
    parser.addoption("--long", action="store_true", help="run reliability tests in full")
    parser.addoption("--rows", action="store_true", help="only tests that keep a reliability row")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test carries the ids of its rows into its report."""
    for item in items:
        ids = sorted({str(one) for mark in item.iter_markers("row") for one in mark.args})
        if ids:
            item.user_properties.append(("rows", " ".join(ids)))
        mark = item.get_closest_marker("long")
        if config.getoption("--long") and mark is not None:
            item.user_properties.append(("form", "long"))
            item.add_marker(pytest.mark.timeout(mark.kwargs.get("limit_s", 900)))
    if config.getoption("--rows"):
        items[:] = [item for item in items if item.get_closest_marker("row") is not None]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The figures of long runs."""
    if terminalreporter.config.getoption("--long"):
        for report in terminalreporter.getreports("passed"):
            for name, value in report.user_properties:
                if name == "figure":
                    terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {value}")


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """Whether to run in full: minutes instead of a second."""
    return bool(request.config.getoption("--long"))


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Notes what was reached, for docs/reliability.md."""
    return lambda text: record_property("figure", text)

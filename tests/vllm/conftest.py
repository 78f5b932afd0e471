"""Two real vLLM servers for a session, a gateway in front of them, and a report at the end.

Everything here is deselected unless asked for with `-m vllm` (see scripts/test_vllm.sh).
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.vllm import processes
from tests.vllm.processes import Server, healthy, vllm_server, write_model
from tokenlane.runtime.ports import free_ports
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.tokenizer import Tokenizer

REPORT = ROOT / "build" / "vllm-report.md"
# What is counted over several tests, by template.
IDS = "prompts whose ids equal those that vLLM says it answered"
FORWARDED = "prompts answered alike by text and by forwarded ids"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves these tests out where no marker expression asks for them."""
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    for item in mine:
        item.add_marker("vllm")
    if "vllm" not in config.option.markexpr:
        config.hook.pytest_deselected(items=mine)
        items[:] = [item for item in items if item not in mine]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows the report of a session that made one."""
    if "vllm" in terminalreporter.config.option.markexpr and REPORT.exists():
        terminalreporter.section(str(REPORT.relative_to(ROOT)))
        terminalreporter.write(REPORT.read_text(encoding="utf-8"))


class Report:
    """Lines that the session's report is made of."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.rows: list[tuple[str, str]] = []
        self._proven: dict[str, dict[str, int]] = {IDS: {}, FORWARDED: {}}

    def add(self, what: str, value: object) -> None:
        """One row of the table."""
        self.rows.append((what, str(value)))

    def prove(self, what: str, of: str, count: int) -> None:
        """One part of a count over several tests."""
        self._proven[what][of] = count

    def write(self) -> None:
        """build/vllm-report.md; `pytest_terminal_summary` shows it."""
        for what, parts in self._proven.items():
            told = ", ".join(f"{of} {count:,}" for of, count in parts.items())
            self.add(what, f"{sum(parts.values()):,} ({told})")
        self.add("whole session", f"{time.monotonic() - self.started_s:.0f} s")
        lines = ["| what | measured |", "|---|---|", *(f"| {a} | {b} |" for a, b in self.rows)]
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def report() -> Iterator[Report]:
    made = Report()
    yield made
    made.write()


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """An interpreter that has vLLM."""
    path = processes.vllm_python()
    if not path.exists():
        pytest.skip(f"{path} is not there: run `make test-vllm`")
    return path


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny", demo_folder())


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> Tokenizer:
    return Tokenizer.load("tiny", model_folder)


@pytest.fixture(scope="session")
def replicas(
    vllm_python: Path, model_folder: Path, report: Report
) -> Iterator[tuple[Server, Server]]:
    """Two healthy vLLM servers with the model `tiny`."""
    pair = (
        vllm_server("vllm-0", vllm_python, model_folder),
        vllm_server("vllm-1", vllm_python, model_folder),
    )
    try:
        for server in pair:
            server.wait()
        report.add("vLLM", pair[0].request("GET", "/version")[1].decode())
        report.add("two servers healthy", f"{max(one.ready_after_s for one in pair):.0f} s")
        yield pair
    finally:
        for server in pair:
            server.stop()


def _gateway(name: str, replicas: tuple[Server, Server], folder: Path) -> Iterator[Server]:
    port, admin_port = free_ports(1), free_ports(1)
    command = [sys.executable, "-m", "tokenlane", "serve", "--port", str(port)]
    command += ["--admin-port", str(admin_port), "--tokenizer", f"tiny={folder}"]
    for replica in replicas:
        command += ["--backend", replica.url]
    with healthy(Server(name, command, port)) as server:
        yield server


@pytest.fixture(scope="session")
def gateway(replicas: tuple[Server, Server], model_folder: Path) -> Iterator[Server]:
    """The gateway, as users start it, in front of both replicas."""
    yield from _gateway("gateway", replicas, model_folder)


@pytest.fixture
def fresh_gateway(replicas: tuple[Server, Server], model_folder: Path) -> Iterator[Server]:
    """One that has sent nobody anything."""
    yield from _gateway("gateway-fresh", replicas, model_folder)

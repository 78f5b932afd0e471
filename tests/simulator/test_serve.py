"""The fleet as a process of its own."""

import signal
import subprocess
import sys
import urllib.request

import pytest

PROGRAM = """
from tokenlane.simulator.serve import run
from tokenlane.simulator.profile import SimulatorSettings
run(SimulatorSettings(), "127.0.0.1", 0, 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_says_when_ready_and_ends_on_a_signal(ending: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert [line.startswith(f"replica {index} ready at") for index, line in enumerate(lines)]
        url = lines[1].split()[4]
        with urllib.request.urlopen(url + "/health", timeout=5.0) as answer:
            assert answer.status == 200
        process.send_signal(ending)
        assert process.wait(10.0) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""

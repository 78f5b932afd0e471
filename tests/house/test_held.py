"""The gate of row O11 can refuse: work that a test plants in this process, or in another."""

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.tools.planted import PLANTED_GATEWAY, VARIABLE
from tests.control.test_supervisor import Gateway, until
from tests.held import LIMIT_S, Gate, Held, told
from tests.paths import ROOT
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.telemetry.stalls.stages import INSPECT, LOOP, OTHER, PARSE

TESTS = """
import asyncio, time
from tokenlane.telemetry.stalls.stages import INSPECT, LOOP, OTHER
from tests.support import gateway

def work(cpu_s, wait_s):
    LOOP.mark(INSPECT)
    time.sleep(wait_s)
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass
    LOOP.mark(OTHER)

async def held(cpu_s, wait_s):
    async with gateway("http://127.0.0.1:1"):
        asyncio.get_running_loop().call_soon(work, cpu_s, wait_s)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

async def test_waits():
    await held(0.0, 0.1)

async def test_works():
    await held(0.5, 0.0)  # far more than the hypervisor takes meanwhile

async def test_is_judged_by_itself():
    await held(0.0, 0.0)
"""


def spin(cpu_s: float) -> None:
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass


@pytest.mark.slow
@pytest.mark.row("O11")
def test_a_piece_of_work_is_what_lies_between_two_marks_of_no_stage() -> None:
    gate = Gate()
    LOOP.mark(OTHER)
    with gate.watched():
        for _ in range(10):  # many are not one
            LOOP.mark(PARSE)
            spin(LIMIT_S / 5)
            LOOP.mark(OTHER)
        LOOP.mark(PARSE)
        time.sleep(2 * LIMIT_S)  # waiting is not working
        LOOP.mark(OTHER)
        LOOP.mark(PARSE)
        heap = [[number] for number in range(100_000)]
        before_s = time.thread_time()
        while time.thread_time() < before_s + 2 * LIMIT_S:  # nor is the collector's work
            gc.collect()
        del heap
        LOOP.mark(OTHER)
    seen = gate.take()
    assert seen.pieces == 12
    assert LIMIT_S / 5 <= seen.longest_s < 2 * LIMIT_S
    with gate.watched():
        LOOP.mark(PARSE)
        spin(LIMIT_S / 2)
        LOOP.mark(INSPECT)
        spin(LIMIT_S / 2)
        LOOP.mark(OTHER)
    assert "until the end of inspect" in (gate.take().refusal() or "")
    assert gate.take() == Held()


@pytest.mark.row("O11")
@pytest.mark.slow
def test_a_test_whose_gateway_holds_its_loop_fails(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(TESTS, encoding="ascii")
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", *options, "--rootdir", tmp_path, tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 2 passed" in run.stdout, run.stdout + run.stderr
    assert "the gateway's loop was held for" in run.stdout
    assert "test_works" in run.stdout.partition("short test summary")[2]


@pytest.mark.row("O11")
@pytest.mark.slow
def test_a_process_that_holds_its_loop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # A spin ends by the clock: on a busy machine it has a CPU for a part of that.
    monkeypatch.setenv(VARIABLE, "inspect:spin:0.3:2")
    with FleetProcess(1, free_ports(1)) as fleet:
        with Gateway("serve", "--backend", fleet.urls[0], program=PLANTED_GATEWAY) as gateway:

            def refused() -> bool:
                assert gateway.chat() == 200
                return told(gateway.admin_port).refusal() is not None

            until(refused)
            seen = told(gateway.admin_port)
            assert "of worker 0" in seen.where
            assert seen.beats > 0

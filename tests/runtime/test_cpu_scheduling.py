"""A loop's thread has short slices, and those that work for it stand back; what else it starts has
the usual share and slices."""

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys

import pytest

from tests.paths import ROOT
from tokenlane.runtime import cpu_scheduling

ASKED = """
import json, os, subprocess, sys, threading
from tokenlane.runtime import cpu_scheduling
from tests.runtime.test_cpu_scheduling import cpu_slice_s

before_s = cpu_slice_s()
cpu_scheduling.take_soon()
told = []
helper_nice = []

def helper():
    cpu_scheduling.stand_back()
    told.append(cpu_slice_s())
    helper_nice.append(os.getpriority(os.PRIO_PROCESS, 0))

for run in (lambda: told.append(cpu_slice_s()), helper):
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
child = "from tests.runtime.test_cpu_scheduling import cpu_slice_s; print(cpu_slice_s())"
told.append(float(subprocess.check_output([sys.executable, "-c", child])))
nice = os.getpriority(os.PRIO_PROCESS, 0)
print(json.dumps([before_s, cpu_slice_s(), *told, sys.getswitchinterval(), nice, *helper_nice]))
"""


def cpu_slice_s() -> float:
    """The calling thread's, as sched_getattr(2) says; 0 where there is none of its own."""
    call = {"x86_64": 315, "aarch64": 275}.get(platform.machine())
    told = ctypes.create_string_buffer(cpu_scheduling.ATTRIBUTES.size)
    if call is None or ctypes.CDLL(None).syscall(call, 0, told, len(told), 0):
        return 0.0
    slice_ns: int = cpu_scheduling.ATTRIBUTES.unpack(told.raw)[5]
    return slice_ns / 1e9


def asked(*before: str) -> list[float]:
    """Slices: before, then, a thread's, a helper's, a process's; the GIL's interval; how nice the
    loop is, and the helper."""
    path = os.pathsep.join([*sys.path, str(ROOT)])
    told = subprocess.check_output(
        [*before, sys.executable, "-c", ASKED], env={**os.environ, "PYTHONPATH": path}
    )
    answers: list[float] = json.loads(told)
    return answers


@pytest.mark.skipif(
    cpu_slice_s() == 0.0,
    reason="this kernel has one length of slice for all (Linux 6.12 has more)",
)
def test_the_loop_and_its_helpers_have_short_slices() -> None:
    usual_s, loop_s, thread_s, helper_s, child_s, switch_s, nice, helper_nice = asked()
    assert (
        loop_s == cpu_scheduling.CPU_SLICE_S < helper_s == cpu_scheduling.HELPER_SLICE_S < usual_s
    )
    assert thread_s == child_s == usual_s
    assert (switch_s, nice) == (cpu_scheduling.GIL_SWITCH_S, os.getpriority(os.PRIO_PROCESS, 0))
    assert helper_nice == nice + cpu_scheduling.HELPER_NICE


@pytest.mark.skipif(shutil.which("chrt") is None, reason="util-linux has chrt")
def test_what_the_operator_chose_stays() -> None:
    usual_s, loop_s, *_ = asked("chrt", "--batch", "0")
    assert loop_s == usual_s
    *_, nice, helper_nice = asked("nice", "-n", "5")
    assert nice == os.getpriority(os.PRIO_PROCESS, 0) + 5
    assert helper_nice == nice + cpu_scheduling.HELPER_NICE
    *_, helper_nice = asked("nice", "-n", "19")
    assert helper_nice == 19

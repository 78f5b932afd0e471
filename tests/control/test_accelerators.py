"""A driver's word of how busy accelerators are, by a library with NVML's names compiled here."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tokenlane.control.accelerators import Accelerators
from tokenlane.fleet_state import ReplicaState

# NVML as its header declares it: two devices at 10 and 30 %, and one that does not answer.
DRIVER = """
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
int nvmlInit_v2(void) { return INIT; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    *device = (void *)(long)(10 + 20 * index);
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, nvmlUtilization_t *used) {
    if ((long)device == 50) return 15;
    used->gpu = (unsigned int)(long)device;
    used->memory = 99;
    return 0;
}
"""
HERE = [ReplicaState("a", 0, "http://127.0.0.1:1"), ReplicaState("b", 1, "http://localhost:2")]
THERE = [ReplicaState("c", 2, "http://10.0.0.1:1"), ReplicaState("d", 3, "http://gpu-host:1")]


def built(folder: Path, init: int) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = folder / "nvml.c", folder / "nvml.so"
    source.write_text(DRIVER, encoding="ascii")
    made = [compiler, f"-DINIT={init}", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(made, check=True)
    return str(library)


def test_the_mean_of_those_that_answer_for_replicas_of_this_machine(tmp_path: Path) -> None:
    said = Accelerators(built(tmp_path, 0)).of([*HERE, *THERE])
    assert said == {"a": pytest.approx(0.2), "b": pytest.approx(0.2)}


def test_a_driver_that_refuses_says_nothing(tmp_path: Path) -> None:
    assert Accelerators(built(tmp_path, 999)).of(HERE) == {}


@pytest.mark.parametrize("library", ["no-such-library.so.1", "libc.so.6"])
def test_without_a_driver_nothing_is_known(library: str) -> None:
    assert Accelerators(library).of(HERE) == {}

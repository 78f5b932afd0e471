"""All threads of a worker allocate from one heap."""

import ctypes
import os
import subprocess
import sys

import pytest

# Threads that hold blocks too large for Python's own allocator, and how many heaps glibc has then.
ASKED = """
import ctypes, sys, threading
from tokenlane.runtime import malloc_arenas
if sys.argv[1] == "shared":
    malloc_arenas.use_one_arena()
held, done = threading.Barrier(4), threading.Barrier(4)

def hold():
    block = [bytes(1000 + size) for size in range(1000)]
    held.wait()
    done.wait()
    del block

for _ in range(3):
    threading.Thread(target=hold).start()
held.wait()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
told = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, told)
libc.fflush(told)
done.wait()
"""


def heaps(kind: str) -> int:
    """Of a process with four threads."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.check_output([sys.executable, "-c", ASKED, kind], env=env, text=True)
    return told.count("<heap nr=")


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_info"), reason="this C library tells of no heaps"
)
def test_threads_share_the_main_heap() -> None:
    assert heaps("own") > 1
    assert heaps("shared") == 1


def test_what_is_loaded_is_left_alone_by_the_collector() -> None:
    told = (
        "import gc; from tokenlane.runtime import malloc_arenas as m;"
        " m.settle(); print(gc.get_freeze_count() > 1000)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.check_output([sys.executable, "-c", told], env=env, text=True) == "True\n"

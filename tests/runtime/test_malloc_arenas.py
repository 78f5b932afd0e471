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


# A long block was freed, and blocks stand behind others that are as long.
FREED = """
import sys
from pathlib import Path
from tokenlane.runtime import malloc_arenas
if sys.argv[1] == "given back":
    malloc_arenas.use_one_arena()
bytes(bytearray(31_000_000))
long, short = [], []
for _ in range(10):
    long.append(bytearray(8_000_000))
    short.append(bytearray(2_000_000))
long.clear()
print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_info"), reason="this C library is another"
)
def test_long_blocks_go_back_to_the_kernel() -> None:
    def left_bytes(kind: str) -> int:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return int(subprocess.check_output([sys.executable, "-c", FREED, kind], env=env))

    assert left_bytes("given back") < left_bytes("kept") - 50_000_000


def test_what_is_loaded_is_left_alone_by_the_collector() -> None:
    told = (
        "import gc; from tokenlane.runtime import malloc_arenas as m;"
        " m.settle(); print(gc.get_freeze_count() > 1000)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.check_output([sys.executable, "-c", told], env=env, text=True) == "True\n"


# What was needed for a while lies below what it left, so that malloc keeps it.
NEEDED = """
import asyncio, re
from pathlib import Path
from tokenlane.runtime import malloc_arenas

def held_kib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

needed = [bytes(2000) for _ in range(50_000)]
left = [bytes(2000)]
del needed
before_kib = held_kib()
"""
AT_ONCE = "malloc_arenas.settle()"
LATER = """
async def trimmed():
    trimming = asyncio.create_task(malloc_arenas.trim_regularly(0.01))
    async with asyncio.timeout(30.0):
        while before_kib - held_kib() < 80_000:
            await asyncio.sleep(0.01)

asyncio.run(trimmed())
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="the C library keeps to itself what it has",
)
@pytest.mark.parametrize("how", [AT_ONCE, LATER], ids=["at once", "regularly"])
def test_what_was_needed_for_a_while_is_given_back(how: str) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    asked = f"{NEEDED}{how}\nprint(before_kib - held_kib())"
    assert int(subprocess.check_output([sys.executable, "-c", asked], env=env)) > 80_000

"""What a process of the gateway says of itself on SIGUSR1, in a file named by its pid.

TOKENLANE_SOAK_FOLDER: where. With PYTHONTRACEMALLOC set it also says who allocated the most.
"""

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
import tracemalloc
from collections import Counter
from pathlib import Path


class _Mallinfo2(ctypes.Structure):
    """glibc's, in its order; those wanted are uordblks (bytes in use) and fordblks (bytes free)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def listen() -> None:
    """From now on."""
    signal.signal(signal.SIGUSR1, _say)


def _malloc() -> dict[str, int]:
    """What the C library has of memory; nothing where it does not say."""
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        return {}
    tell.restype = _Mallinfo2
    told = tell()
    return {"used": told.uordblks + told.hblkhd, "free": told.fordblks}


def _say(*_: object) -> None:
    path = Path(os.environ["TOKENLANE_SOAK_FOLDER"]) / str(os.getpid())
    garbage = gc.collect()
    objects = gc.get_objects()
    kinds = Counter(type(one).__qualname__ for one in objects).most_common(40)
    said = {
        "tasks": len(asyncio.all_tasks()),
        "garbage": garbage,
        "objects": len(objects),
        "kinds": dict(kinds),
        "blocks": sys.getallocatedblocks(),
        "malloc": _malloc(),
    }
    if tracemalloc.is_tracing():
        places = tracemalloc.take_snapshot().statistics("lineno")[:40]
        said["traced"] = {str(one.traceback): [one.size, one.count] for one in places}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(said), encoding="utf-8")
    new.rename(path)

"""A worker that says on SIGUSR1 how many tasks and objects it has, in a file named by its pid.

    python -m tests.soak.worker CHANNEL_FD          (TOKENLANE_SOAK_FOLDER: where)

Everything else is proxy.worker.
"""

import asyncio
import gc
import json
import os
import signal
from collections import Counter
from pathlib import Path

from proxy.worker import main


def _say(*_: object) -> None:
    path = Path(os.environ["TOKENLANE_SOAK_FOLDER"]) / str(os.getpid())
    gc.collect()
    objects = gc.get_objects()
    kinds = Counter(type(one).__qualname__ for one in objects).most_common(30)
    said = {"tasks": len(asyncio.all_tasks()), "objects": len(objects), "kinds": dict(kinds)}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(said), encoding="utf-8")
    new.rename(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _say)
    main()

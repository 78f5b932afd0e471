"""A worker that says how it is when it is asked (tests.soak.says); otherwise tokenlane.worker.main.

What is free in its heap goes to the kernel all the time: a worker itself trims when a thread that
encodes is replaced, now and then, so its least memory would tell when that was last.

python -m tests.soak.worker CHANNEL_FD
"""

import threading
import time

from tests.soak import says
from tokenlane.runtime.malloc_arenas import trim
from tokenlane.worker.main import main

_TRIM_PERIOD_S = 20.0


def _trim_regularly() -> None:
    while True:
        time.sleep(_TRIM_PERIOD_S)
        trim()


if __name__ == "__main__":
    says.listen()
    threading.Thread(target=_trim_regularly, name="trim", daemon=True).start()
    main()

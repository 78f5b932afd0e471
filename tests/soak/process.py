"""The gateway of a soak as a process, and what can be seen of it from outside."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import psutil

from bench.tools.client import fetch
from bench.tools.scrape import Samples, samples
from tests.held import GATE
from tests.paths import ROOT
from tests.soak.audit import Kill
from tokenlane.config.settings import Settings

PATIENCE_S = 30.0
_LISTEN = "0A"
_DEATH = re.compile(r"worker \d+ ended \(code")
# What must be zero when nobody asks anything.
_COUNTS = (
    "tokenlane_connections",
    "tokenlane_admitted_requests",
    "tokenlane_waiting_requests",
    "tokenlane_replica_in_flight_requests",
    "tokenlane_replica_queued_tokens",
    "tokenlane_upstream_connections",
)


class Gateway:
    """tests.soak.serve, as a context. folder: for what it writes."""

    def __init__(self, made: Settings, folder: Path) -> None:
        self.folder = folder
        self.file = file = folder / "settings.json"
        self.given = msgspec.json.encode(made)
        file.write_bytes(self.given)
        paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
        own = {"PYTHONPATH": os.pathsep.join(paths), "TOKENLANE_SOAK_FOLDER": str(folder)}
        self._errors = (folder / "stderr").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.serve", str(file)],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | own,
        )
        assert self.process.stdout is not None
        said = [self.process.stdout.readline() for _ in range(2)]
        found = [re.search(r"http://127.0.0.1:(\d+)", line) for line in said]
        assert all(found), (folder / "stderr").read_text(encoding="utf-8")
        self.port, self.admin_port = (int(one[1]) for one in found if one is not None)

    def status(self) -> Any:
        """/status.json"""
        return json.loads(fetch(self.admin_port, "/status.json").body)

    def samples(self) -> Samples:
        """/metrics"""
        return samples(self.admin_port)

    def pids(self) -> list[int]:
        """Of the workers that serve, by number; 0 where there is none at the moment."""
        return [
            int(worker["pid"]) if worker["state"] == "ready" else 0
            for worker in self.status()["workers"]
        ]

    def unfinished(self) -> list[str]:
        """What is counted although nobody asks anything."""
        return [
            f"{name}{dict(labels)} is {value}"
            for (name, labels), value in self.samples().items()
            if name in _COUNTS and value
        ]

    def errors(self, kills: int) -> list[str]:
        """What it says went wrong in itself, and workers that died though nobody killed them.
        kills: of workers, so far."""
        lines = (self.folder / "stderr").read_text(encoding="utf-8").splitlines()
        wrong = [line for line in lines if " ERROR " in line or line.startswith("Traceback")]
        bad = [line for line in wrong if "settings stay as they were" not in line]
        said = [f"{len(bad)} errors in its log, as {bad[0]}"] if bad else []
        deaths = [line for line in lines if _DEATH.search(line)]
        if len(deaths) != kills:
            said.append(f"{kills} workers were killed, {len(deaths)} died: {deaths}")
        return said

    def reload(self, given: bytes) -> None:
        """Puts another file of settings in the place of its own."""
        new = self.file.with_suffix(".new")
        new.write_bytes(given)
        new.rename(self.file)

    def says(self, pid: int) -> dict[str, Any]:
        """What a process says of itself (tests.soak.says)."""
        path = self.folder / str(pid)
        path.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        deadline_s = time.monotonic() + PATIENCE_S
        while not path.exists():
            assert time.monotonic() < deadline_s, "a process does not say how it is"
            time.sleep(0.02)
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return said

    def kill_worker(self, number: int) -> Kill | None:
        """kill -9, and which clients were on it. None if one is not there as it is."""
        pids = self.pids()
        if not all(pids):
            return None
        process = psutil.Process(pids[number])
        process.suspend()
        since_s = time.monotonic()
        # The kernel's table is not read in one step: a look may miss some.
        ports = set().union(*(_clients_of(self.port, process.pid) for _ in range(3)))
        process.kill()
        while not _over(process):
            time.sleep(0.001)
        return Kill(since_s, time.monotonic(), frozenset(ports), number)

    def tokenizers(self) -> list[psutil.Process]:
        """The tokenizer processes of all workers."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child for pid in self.pids() if pid for child in psutil.Process(pid).children()]
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.close()

    def stop(self) -> None:
        """Tells it to, once what its loops did has been asked (row O11)."""
        GATE.ends(self.admin_port)
        self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Waits for its end, and gives back what was held for it."""
        with self.process:
            pass
        self._errors.close()


def _over(process: psutil.Process) -> bool:
    """Whether nothing of a killed process holds its sockets any more. Its first thread may be a
    zombie while others still end, and until the last one has the listener takes connections."""
    try:
        threads = os.listdir(f"/proc/{process.pid}/task")
        return len(threads) == 1 and process.status() == psutil.STATUS_ZOMBIE
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        return True


def _clients_of(port: int, pid: int) -> set[int]:
    """Ports of those connected to this one whose connections this process, or nobody yet, has."""
    own = {0}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            kind, _, number = str(Path(f"/proc/{pid}/fd/{name}").readlink()).partition(":")
            if kind == "socket":
                own.add(int(number[1:-1]))
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    rows = [line.split() for line in lines]
    return {
        int(row[2].rpartition(":")[2], 16)
        for row in rows
        if int(row[1].rpartition(":")[2], 16) == port and row[3] != _LISTEN and int(row[9]) in own
    }


@dataclass
class Footprint:
    """A gateway at rest: file descriptors and tasks of its processes, by name, and all that they
    say."""

    descriptors: dict[str, int]
    tasks: dict[str, int]
    said: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, gateway: Gateway) -> Self:
        """Now."""
        pids = {f"worker {number}": pid for number, pid in enumerate(gateway.pids())}
        pids["supervisor"] = gateway.process.pid
        said = {name: gateway.says(pid) for name, pid in pids.items()}
        tasks = {name: int(one["tasks"]) for name, one in said.items()}
        return cls({name: psutil.Process(pid).num_fds() for name, pid in pids.items()}, tasks, said)

    def above(self, base: "Footprint") -> list[str]:
        """What there is more of than then."""
        return [
            f"{what} of {name}: {count}, at first {then[name]}"
            for what, now, then in (
                ("file descriptors", self.descriptors, base.descriptors),
                ("tasks", self.tasks, base.tasks),
            )
            for name, count in now.items()
            if count > then[name]
        ]

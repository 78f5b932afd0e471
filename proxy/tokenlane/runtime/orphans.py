"""Workers whose supervisor died: how the next one finds them and tells them to drain.

Invariants:
- A worker that lost its supervisor says so in its process name, with the port it serves on. It is
  taken at its word where it is this user's and listens there.
- Any other process that listens on the port keeps it.
"""

import contextlib
import os
import signal
from pathlib import Path

_PROC = Path("/proc")
_LISTEN = "0A"


def _name(port: int) -> str:
    """Return the process name, within the length that Linux allows."""
    return f"orphan-at-{port}"


def become(port: int) -> None:
    """Rename this process as an orphan."""
    with contextlib.suppress(OSError):
        (_PROC / "self/comm").write_text(_name(port), encoding="ascii")


def hold(port: int) -> bool:
    """Return whether only orphans listen there."""
    listening = _listening(port)
    return bool(listening) and listening <= set().union(*_orphans(port).values())


def dismiss(port: int) -> int:
    """Tell them to drain and exit. Return how many there are."""
    pids = [pid for pid, sockets in _orphans(port).items() if sockets & _listening(port)]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return len(pids)


def _orphans(port: int) -> dict[int, set[str]]:
    """Return the descriptors that orphans have open, by pid."""
    found = {}
    for folder in _PROC.iterdir():
        # A process that ends while it is read is not an orphan.
        with contextlib.suppress(OSError):
            if (
                folder.name.isdigit()
                and folder.stat().st_uid == os.geteuid()
                and (folder / "comm").read_text().rstrip("\n") == _name(port)
            ):
                found[int(folder.name)] = _open(folder)
    return found


def _open(process: Path) -> set[str]:
    found = set()
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(OSError):  # closed by now
            found.add(str(descriptor.readlink()))
    return found


def _listening(port: int) -> set[str]:
    """Return the sockets that listen on the port, whatever their address, as descriptors show
    them."""
    found = set()
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found

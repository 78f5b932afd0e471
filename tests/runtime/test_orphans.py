"""Workers that lost their supervisor are known by their names and their sockets."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenlane.errors import ConfigError
from tokenlane.runtime import orphans, ports

_ORPHAN = """
import sys
from tokenlane.runtime import orphans, ports
listener = ports.reuse_port_socket("127.0.0.1", int(sys.argv[1]))
print(listener.getsockname()[1], flush=True)
sys.stdin.readline()
orphans.become(listener.getsockname()[1])
print(flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _ORPHAN, "0"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        yield process
        process.kill()


def told(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline()


def orphaned(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    told(worker)


def test_their_port_is_free_for_a_new_supervisor_alone(worker: subprocess.Popen[str]) -> None:
    port = int(told(worker))
    with pytest.raises(ConfigError, match="already taken"):
        ports.reserve("127.0.0.1", port)
    assert orphans.dismiss(port) == 0
    orphaned(worker)
    assert Path(f"/proc/{worker.pid}/comm").read_text().strip() == f"orphan-at-{port}"
    with ports.reserve("127.0.0.1", port):
        assert not orphans.hold(port + 1)
        with ports.reuse_port_socket("127.0.0.1", port):
            with pytest.raises(ConfigError, match="already taken"):
                ports.reserve("127.0.0.1", port)
        assert orphans.dismiss(port) == 1
        assert worker.wait(30) < 0
    assert orphans.dismiss(port) == 0


def test_a_name_alone_is_no_claim(worker: subprocess.Popen[str]) -> None:
    port = int(told(worker))
    orphaned(worker)
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert not orphans.hold(other.getsockname()[1])
        assert orphans.dismiss(other.getsockname()[1]) == 0
    assert orphans.hold(port)

"""`tokenlane demo` in a process of its own, as people run it."""

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenlane.runtime.ports import free_ports


@contextlib.contextmanager
def demo(command: Sequence[str], folder: Path) -> Iterator[int]:
    """Run the demo until it serves; yield its port. The admin port is the next one."""
    port = free_ports(2)
    admin_port = port + 1
    argv = [*command, "demo", "--port", str(port), "--admin-port", str(admin_port)]
    with (
        (folder / "demo.log").open("wb") as log,
        subprocess.Popen(argv, cwd=folder, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            check = [*command, "healthcheck", "--admin-port", str(admin_port)]
            while subprocess.run(check, capture_output=True, check=False).returncode:
                assert process.poll() is None, (folder / "demo.log").read_text()
            yield port
        finally:
            process.terminate()

"""`make run-fleet`: the command that it prints is answered, by gateways that see each other."""

import json
import signal
import subprocess
import sys
import time
from urllib.request import urlopen

import pytest

from bench.tools.paths import ROOT
from tests.stores import needs_store
from tokenlane.runtime.ports import free_ports

PATIENCE_S = 45.0


def peers(admin_port: int) -> set[str]:
    """Return the admin ports of the others that a gateway sees, by their names."""
    try:
        with urlopen(f"http://127.0.0.1:{admin_port}/status.json", timeout=5) as answer:
            named = [one["name"] for one in json.load(answer)["fleet"]["peers"]]
    except OSError:
        return set()
    return {name.rpartition(":")[2] for name in named}


@pytest.mark.slow
@needs_store
@pytest.mark.timeout(120)
def test_three_gateways_behind_one_port() -> None:
    port = free_ports(4)
    argv = [sys.executable, "-m", "scripts.fleet_demo"]
    argv += ["--port", str(port), "--admin-port", str(port + 1)]
    with subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            printed = ""
            while "-d '" not in printed:
                line = process.stdout.readline()
                assert line, printed
                printed += line
            admins, ends_s = range(port + 1, port + 4), time.monotonic() + PATIENCE_S
            while any(peers(admin) != {*map(str, admins)} - {str(admin)} for admin in admins):
                assert time.monotonic() < ends_s
                time.sleep(0.1)
            command = printed[printed.index("curl") :]
            answer = subprocess.run(command, shell=True, capture_output=True, check=True)
            assert json.loads(answer.stdout)["choices"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()
    assert process.returncode == 0

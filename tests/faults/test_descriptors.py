"""A worker out of file descriptors: it neither spins nor floods its log, and serves on later."""

import contextlib
import resource
import socket
import time

import psutil
import pytest

from tests.control.test_supervisor import Gateway, until
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess


def _answers(sock: socket.socket) -> bool:
    sock.settimeout(0.3)
    with contextlib.suppress(OSError):
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        return sock.recv(12) == b"HTTP/1.1 200"
    return False


@pytest.mark.row("O4")
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_none_left_and_back() -> None:
    with (
        FleetProcess(1, free_ports(1)) as fleet,
        Gateway("serve", "--backend", *fleet.urls) as gate,
    ):
        assert gate.chat() == 200
        [worker] = gate.status()["workers"]
        process = psutil.Process(worker["pid"])
        limit = process.num_fds() + 20
        resource.prlimit(worker["pid"], resource.RLIMIT_NOFILE, (limit, limit))
        with contextlib.ExitStack() as stack:
            crowd = [
                stack.enter_context(socket.create_connection(("127.0.0.1", gate.port)))
                for _ in range(60)
            ]
            served = sum(map(_answers, crowd))
            assert 0 < served < 60
            before, began = process.cpu_times(), time.monotonic()
            time.sleep(0.5)
            after, ended = process.cpu_times(), time.monotonic()
            spent = (after.user - before.user + after.system - before.system) / (ended - began)
            assert spent < 0.9, "it spins"
        until(lambda: process.num_fds() < limit - 10)
        until(lambda: gate.chat() == 200)
        assert gate.status()["workers"][0]["restarts"] == 0
        assert gate.stop() == 0
        assert gate.process.stderr is not None
        assert len(gate.process.stderr.read().splitlines()) < 100

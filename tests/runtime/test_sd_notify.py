"""sd_notify against a real datagram socket, which is all systemd is to it."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.test_supervisor import PATIENCE_S, Gateway
from tokenlane.runtime.ports import free_ports
from tokenlane.runtime.sd_notify import notify
from tokenlane.simulator.subprocess_fleet import FleetProcess


@pytest.fixture
def systemd() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE_S)
        yield sock


def test_without_systemd_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify("READY=1")


@pytest.mark.parametrize("abstract", [False, True])
def test_it_is_told(
    systemd: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = f"tokenlane-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    systemd.bind("\0" + name if abstract else name)
    monkeypatch.setenv("NOTIFY_SOCKET", "@" + name if abstract else name)
    assert notify("READY=1", "STATUS=serves")
    assert systemd.recv(4096) == b"READY=1\nSTATUS=serves"


def test_nobody_there_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    assert not notify("READY=1")


@pytest.mark.slow
def test_a_gateway_says_ready_once_it_serves_and_stopping_when_it_drains(
    systemd: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd.bind(str(tmp_path / "notify"))
    with FleetProcess(1, free_ports(1)) as fleet:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with Gateway("serve", "--backend", fleet.urls[0]) as gateway:
            said = systemd.recv(4096).decode().splitlines()
            assert said == ["READY=1", f"STATUS=serves on http://127.0.0.1:{gateway.port}"]
            assert gateway.ask("/health")[0] == 200
            assert gateway.stop() == 0
            assert systemd.recv(4096).startswith(b"STOPPING=1\n")

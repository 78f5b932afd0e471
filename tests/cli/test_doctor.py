"""`tokenlane doctor`, in front of what a new user meets."""

import os
import resource
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from tests.control.test_supervisor import Gateway
from tokenlane import __version__
from tokenlane.cli.doctor import (
    DoctorReport,
    check_front_ends,
    check_machine,
    check_ports,
    check_variables,
    examine,
)
from tokenlane.config.settings import (
    AdminSettings,
    DiscoverySettings,
    ModelSettings,
    ServerSettings,
    Settings,
    TokenSettings,
)
from tokenlane.control.front_end import FrontEnd
from tokenlane.runtime import ports
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.tokens.demo import demo_folder


def settings(*backends: str, port: int = 0, admin_port: int = 0, **folders: str) -> Settings:
    return Settings(
        backends=backends,
        server=ServerSettings(port=port),
        admin=AdminSettings(port=admin_port),
        tokens=TokenSettings(folders=folders),
    )


@pytest.fixture
def nobody() -> str:
    """A URL that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_what_would_not_serve(nobody: str, tmp_path: Path) -> None:
    lines: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = examine(settings(nobody, port=port, m=str(tmp_path)), {}, lines.append)
    assert code == 1
    text = "\n".join(lines)
    for said in (
        f"FAIL  settings: tokens.folders.m: {tmp_path}/tokenizer.json cannot be read",
        f"FAIL  data port: port {port} on 127.0.0.1 is already taken; choose another --port",
        "ok    admin port",
        f"FAIL  replica {nobody}: nothing listens there; is vLLM running, and is the port right?",
        "The gateway would not serve",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("shares", "said"), [(True, "ok    data port: 127.0.0.1:{} is free, or shared"),
                         (False, "FAIL  data port: port {} on 127.0.0.1 is already taken")]
)  # fmt: skip
def test_a_port_that_another_gateway_shares(shares: bool, said: str) -> None:
    lines: list[str] = []
    with ports.reserve("127.0.0.1", 0, shared=True) as held:
        host, port = ports.address_of(held)
        with ports.reuse_port_socket(host, port):
            server = ServerSettings(port=port, share_port=shares)
            given = Settings(server=server, admin=AdminSettings(port=0))
            check_ports(DoctorReport(lines.append), given)
    assert lines[0].strip().startswith(said.format(port))
    assert lines[1].strip() == "ok    admin port: one that is free on 127.0.0.1"


def test_no_replica_given() -> None:
    lines: list[str] = []
    assert examine(settings(), {}, lines.append) == 1
    assert (
        "FAIL  settings: backends: no replica to serve from; give at least one --backend"
        in "\n".join(lines)
    )


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ('["{url}"]', "FAIL  replica {url}: nothing listens there"),
        ('["a:1"]', "warn  {file}: 'a:1' must look like http://HOST:PORT; did you mean"),
        (None, "warn  discovery.file: {file} cannot be read (No such file or directory)"),
    ],
)
def test_a_file_of_replicas(listed: str | None, said: str, nobody: str, tmp_path: Path) -> None:
    file = tmp_path / "replicas.json"
    if listed is not None:
        file.write_text(listed.format(url=nobody))
    given = msgspec.structs.replace(settings(), discovery=DiscoverySettings(file=str(file)))
    lines: list[str] = []
    examine(given, {}, lines.append)
    assert said.format(url=nobody, file=file) in "\n".join(lines)


@pytest.fixture(scope="module")
def fleet() -> Iterator[FleetProcess]:
    with FleetProcess(1, free_ports(1)) as fleet:
        yield fleet


@pytest.mark.slow
def test_what_would_serve(fleet: FleetProcess) -> None:
    [url] = fleet.urls
    lines: list[str] = []
    assert examine(settings(url, demo=str(demo_folder())), {}, lines.append) == 0
    text = "\n".join(lines)
    assert f"ok    replica {url}: up, serves demo" in text
    assert f"ok    tokenizer of demo: {demo_folder()} (given; fastokens and minijinja)" in text
    assert "FAIL" not in text


@pytest.mark.slow
def test_a_gateway_that_runs_with_these_settings(fleet: FleetProcess) -> None:
    [url] = fleet.urls
    with Gateway("serve", "--backend", url) as running:
        lines: list[str] = []
        given = settings(url, port=running.port, admin_port=running.admin_port)
        assert examine(given, {}, lines.append) == 0
        # Another gateway's ports are taken all the same.
        assert examine(settings(url, port=running.port), {}, lines.append) == 1
    text = "\n".join(lines)
    who = f"tokenlane {__version__}, process {running.process.pid}"
    for what, port in (("data", running.port), ("admin", running.admin_port)):
        assert f"{what} port: 127.0.0.1:{port} is served by a running gateway, {who}" in text
    assert f"FAIL  data port: port {running.port} on 127.0.0.1 is already taken" in text


@pytest.mark.parametrize("starved", [True, False])
def test_what_a_running_gateway_says_of_front_ends(starved: bool) -> None:
    seen = FrontEnd(starved, in_flight=32.0, outside=0.9, cores=0.99)
    rows = [{"id": "a:1", "front_end": msgspec.to_builtins(seen)}, {"id": "b:1", "front_end": None}]
    told = msgspec.json.encode(
        {"url": "http://127.0.0.1:80", "version": "1", "pid": 1, "replicas": rows}
    )

    class Admin(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, *_: object) -> None:
            pass

    lines: list[str] = []
    with HTTPServer(("127.0.0.1", 0), Admin) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        given = settings(port=80, admin_port=server.server_port)
        check_front_ends(DoctorReport(lines.append), given)
    assert lines == ([f"  warn  replica a:1: {seen.why}"] if starved else [])


@pytest.mark.slow
def test_doubts_of_a_folder(fleet: FleetProcess, tmp_path: Path) -> None:
    for path in demo_folder().iterdir():
        if path.suffix == ".json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "params.json").write_text("{}")
    lines: list[str] = []
    assert examine(settings(*fleet.urls, demo=str(tmp_path)), {}, lines.append) == 0
    told = "warn  tokenizer of demo: its ids may differ from vLLM's: beside Mistral's own weights"
    assert told in "\n".join(lines)


@pytest.mark.slow
def test_a_model_without_a_tokenizer_and_a_tokenizer_without_a_model(fleet: FleetProcess) -> None:
    lines: list[str] = []
    assert examine(settings(*fleet.urls, dmeo=str(demo_folder())), {}, lines.append) == 0
    text = "\n".join(lines)
    assert "warn  tokenizer of demo: " in text
    assert f"{fleet.urls[0]}/tokenize answers; its replicas are asked until" in text
    assert "--tokenizer demo=DIR names its folder" in text
    assert "warn  tokenizer of dmeo: no replica serves this model; is the name right?" in text
    assert "The gateway would serve" in text


def test_names_of_models_that_nobody_serves(fleet: FleetProcess) -> None:
    lines: list[str] = []
    models = ModelSettings(aliases={"gpt-4o": "demo", "gpt-5": "dmeo"})
    examine(msgspec.structs.replace(settings(*fleet.urls), models=models), {}, lines.append)
    assert "  ok    models: demo, that gpt-4o means, is served" in lines
    assert "  warn  models: no replica serves dmeo, that gpt-5 means; served: demo" in lines


def test_variables_that_mean_nothing() -> None:
    lines: list[str] = []
    check_variables(DoctorReport(lines.append), {"TOKENLANE_PROT": "1", "TOKENLANE_CONFIG": "x"})
    [line] = lines
    assert "TOKENLANE_PROT means nothing" in line


def test_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1 << 20))
    check_machine(DoctorReport(lines.append), Settings(server=ServerSettings(workers=5)))
    assert "5 workers share 2; --workers 2 serves better" in lines[0]
    assert "at most 1024" in lines[1]
    assert "ulimit -n 16384" in lines[1]

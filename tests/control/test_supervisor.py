"""The whole gateway as its operator sees it: real processes, from argv to exit code."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from tests.held import GATE
from tokenlane.cli.main import main
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.tokens.demo import demo_folder

pytestmark = pytest.mark.slow

PATIENCE_S = 30.0


class Gateway:
    """`python -m tokenlane VERB ...` until it has said that it serves. prefix: what starts it.
    program: a module with the same command line."""

    def __init__(
        self,
        *argv: str,
        port: int = 0,
        prefix: tuple[str, ...] = (),
        program: str = "tokenlane",
    ) -> None:
        ports = ("--port", str(port), "--admin-port", "0")
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", program, *argv, *ports],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = [self.process.stdout.readline() for _ in range(2)]
        self.port, self.admin_port = (
            int(match[1]) if (match := re.search(r"http://127.0.0.1:(\d+)", line)) else 0
            for line in self.said
        )

    def line(self, word: str) -> str:
        """The rest of the next line that begins with this word."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.split()[:1] == [word]:
                return line.strip().removeprefix(word).strip()
        raise AssertionError(f"nothing was said about a {word}")

    def ask(self, path: str, body: Any = None, *, admin: bool = False) -> tuple[int, bytes]:
        """One request on a connection of its own."""
        connection = self.send(path, body, admin=admin)
        with contextlib.closing(connection):
            response = connection.getresponse()
            return response.status, response.read()

    def send(
        self, path: str, body: Any = None, *, admin: bool = False
    ) -> http.client.HTTPConnection:
        port = self.admin_port if admin else self.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        if body is None:
            connection.request("GET", path)
        else:
            headers = {"content-type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
        return connection

    def chat(self) -> int:
        """The status of a small chat request."""
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
        return self.ask("/v1/chat/completions", body)[0]

    def status(self) -> Any:
        return json.loads(self.ask("/status.json", admin=True)[1])

    def requests_total(self) -> float:
        """The counter, summed over its labels."""
        page = self.ask("/metrics", admin=True)[1].decode()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in page.splitlines()
            if line.startswith("tokenlane_requests_total{")
        )

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code after this signal."""
        self._ends()
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def _ends(self) -> None:
        """It is told to, and what its loops did is asked before."""
        if self.process.poll() is None and self.admin_port:
            GATE.ends(self.admin_port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self._ends()
            self.process.terminate()
        with self.process:  # closes the pipes and reaps
            pass


def until(true: Callable[[], bool]) -> None:
    """Polls what only a request can tell."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.fixture(scope="module")
def fleet() -> Iterator[FleetProcess]:
    with FleetProcess(2, free_ports(2), ("--token-interval-s", "0.02")) as fleet:
        yield fleet


@pytest.fixture
def argv(fleet: FleetProcess) -> list[str]:
    backends = [word for url in fleet.urls for word in ("--backend", url)]
    return ["serve", *backends, "--tokenizer", f"demo={demo_folder()}"]


@pytest.mark.row("O12")
def test_two_workers_count_as_one_gateway_and_one_may_die(argv: list[str]) -> None:
    with Gateway(*argv, "--workers", "2") as gateway:
        assert gateway.ask("/readyz", admin=True)[0] == 200
        assert [gateway.chat() for _ in range(20)] == [200] * 20
        # An answer has left a moment before its request is counted and its lease is over.
        until(lambda: gateway.requests_total() == 20)
        victim = gateway.status()["workers"][0]
        os.kill(victim["pid"], signal.SIGKILL)

        def back() -> bool:
            worker = gateway.status()["workers"][0]
            # Never down meanwhile, and never less than was counted.
            assert gateway.ask("/readyz", admin=True)[0] == 200
            assert gateway.requests_total() == 20
            return bool(worker["state"] == "ready" and worker["pid"] != victim["pid"])

        until(back)
        assert gateway.status()["workers"][0]["restarts"] == 1
        assert [gateway.chat() for _ in range(10)] == [200] * 10
        until(lambda: gateway.requests_total() == 30)
        until(lambda: not any(row["in_flight_requests"] for row in gateway.status()["replicas"]))
        assert gateway.stop() == 0


def _variables(pid: int) -> dict[str, str]:
    """What a process found in its environment."""
    pairs = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for file in Path(f"/proc/{pid}/task").glob("*/children")
        for child in file.read_text(encoding="ascii").split()
    ]


def test_processes_get_no_secret_that_they_do_not_need(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLANE_ADMIN_TOKEN", "open-sesame")
    monkeypatch.setenv("TOKENLANE_UPSTREAM_API_KEY", "replicas-key")
    monkeypatch.setenv("HF_TOKEN", "hub-token")
    with Gateway(*argv, "--tokens-processes", "1") as gateway:
        assert gateway.status()["accept_queue"] == {"waiting": 0, "refused": 0}
        [worker] = gateway.status()["workers"]
        until(lambda: len(_children(worker["pid"])) == 1)
        [tokenizer] = _children(worker["pid"])
        of_worker, of_tokenizer = _variables(worker["pid"]), _variables(tokenizer)
        assert of_worker["PATH"] == of_tokenizer["PATH"] == os.environ["PATH"]
        assert of_worker["TOKENLANE_UPSTREAM_API_KEY"] == "replicas-key"
        assert {"open-sesame", "hub-token"}.isdisjoint(of_worker.values())
        assert {"open-sesame", "hub-token", "replicas-key"}.isdisjoint(of_tokenizer.values())
        assert gateway.chat() == 200
        assert gateway.stop() == 0


def test_a_hangup_for_the_whole_service_ends_no_worker(argv: list[str]) -> None:
    """As by `systemctl kill -s HUP`: the supervisor alone makes something of it, a reload."""
    with Gateway(*argv, "--tokens-processes", "1") as gateway:
        [worker] = gateway.status()["workers"]
        until(lambda: len(_children(worker["pid"])) == 1)
        [tokenizer] = _children(worker["pid"])
        for pid in (gateway.process.pid, worker["pid"], tokenizer):
            os.kill(pid, signal.SIGHUP)
        until(lambda: sum(gateway.status()["config"]["reloads"].values()) == 1)
        assert gateway.chat() == 200
        assert gateway.status()["workers"][0]["pid"] == worker["pid"]
        assert _children(worker["pid"]) == [tokenizer]
        assert gateway.stop() == 0


def test_what_is_asked_of_the_admin_port_makes_no_line_of_its_own_in_the_log(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLANE_ADMIN_TOKEN", "open-sesame")
    with Gateway(*argv) as gateway:
        assert gateway.ask("/replicas/a%0aFAKE/drain", {}, admin=True)[0] == 401
        with socket.create_connection(("127.0.0.1", gateway.admin_port)) as peer:
            peer.sendall(b"FAKE\r\n\r\n")
            with peer.makefile("rb") as answer:
                assert b'{"error":' in answer.read()
        assert gateway.stop() == 0
        assert gateway.process.stderr is not None
        lines = gateway.process.stderr.readlines()
    assert [line for line in lines if line.startswith("FAKE")] == []
    [told] = [line for line in lines if "FAKE" in line]
    assert told.endswith(" admin POST /replicas/a\\nFAKE/drain was refused\n")
    assert not any("Traceback" in line for line in lines)


def test_readers_need_the_token_where_the_operator_says_so(
    argv: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"model": "demo", "prompt": "Hello"}))
    token = tmp_path / "token"
    token.write_text("open-sesame\n")
    shown = ("--admin-token-file", str(token))
    with Gateway(*argv, "--admin-read-needs-token", "true", *shown) as gateway:
        url = f"http://127.0.0.1:{gateway.admin_port}"
        verbs = (("top", "--once"), ("explain", str(request)), ("replicas",))
        for verb in verbs:
            assert main([*verb, "--admin", url]) == 1
        assert "open-sesame" not in str(capsys.readouterr())
        for verb in verbs:
            assert main([*verb, "--admin", url, *shown]) == 0
        monkeypatch.setenv("TOKENLANE_ADMIN_TOKEN", "open-sesame")
        for verb in verbs:
            assert main([*verb, "--admin", url]) == 0
        assert main(["healthcheck", "--admin-port", str(gateway.admin_port)]) == 0
        assert gateway.ask("/metrics", admin=True)[0] == 401
        assert gateway.ask("/readyz", admin=True)[0] == 200
        assert gateway.stop() == 0


def test_a_token_that_readers_need_must_be_there(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-config", *argv[1:], "--admin-read-needs-token", "true"]) == 1
    told = "".join(capsys.readouterr())
    assert "admin.read_needs_token: is on, but there is no token" in told


STREAM = {"model": "demo", "prompt": "Say a lot", "max_tokens": 40, "stream": True}


def test_explain_says_where_a_request_would_go_and_sends_nothing(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "request.json"
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello, you " * 99}]}
    file.write_text(json.dumps(body))
    with Gateway(*argv, "--policy", "session") as gateway:
        url = f"http://127.0.0.1:{gateway.admin_port}"

        def explained(*flags: str) -> tuple[int, str, str]:
            code = main(["explain", str(file), "--admin", url, *flags])
            return code, *capsys.readouterr()

        assert gateway.ask("/v1/chat/completions", body)[0] == 200
        code, out, _ = explained("--json")
        told = json.loads(out)
        assert (code, told["reason"], told["policy"]) == (0, "prefix", "session")
        (home,) = [row for row in told["replicas"] if row["chosen"]]
        assert home["matched_tokens"] > 200
        code, out, _ = explained("--header", "X-Session-Affinity: me")
        assert code == 0
        assert "the session's name chose it (session)" in out
        assert len([line for line in out.splitlines() if line.startswith(">")]) == 1
        until(lambda: gateway.requests_total() == 1)
        body["model"] = "other"
        file.write_text(json.dumps(body))
        code, _, error = explained()
        assert code == 1
        assert 'would refuse this request with 404: The model "other" does not exist' in error


@pytest.mark.row("O7")
def test_a_drain_lets_a_stream_end(argv: list[str]) -> None:
    with Gateway(*argv) as gateway:
        connection = gateway.send("/v1/completions", STREAM)
        with contextlib.closing(connection):
            response = connection.getresponse()
            first = response.readline()
            assert first.startswith(b"data: ")
            gateway.process.send_signal(signal.SIGTERM)
            until(lambda: gateway.ask("/readyz", admin=True)[0] == 503)
            rest = response.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        assert gateway.process.wait(PATIENCE_S) == 0


@pytest.mark.row("O7")
def test_a_second_signal_stops_at_once(argv: list[str]) -> None:
    with Gateway(*argv) as gateway:
        connection = gateway.send("/v1/completions", STREAM | {"max_tokens": 5000})
        with contextlib.closing(connection):
            response = connection.getresponse()
            response.readline()
            gateway.process.send_signal(signal.SIGINT)
            until(lambda: gateway.ask("/readyz", admin=True)[0] == 503)
            assert gateway.stop(signal.SIGINT) == 1
            with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
                response.read()


def _lives(pid: int) -> bool:
    """Whether it is more than a name in the table of processes."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")")[1].split()[0] != "Z"
        )
    except FileNotFoundError:
        return False


def test_the_data_plane_outlives_the_control_plane_for_a_while(argv: list[str]) -> None:
    with Gateway(*argv, "--server-orphan-s", "1") as gateway:
        [worker] = gateway.status()["workers"]
        connection = gateway.send("/v1/completions", STREAM | {"max_tokens": 100})
        with contextlib.closing(connection):
            response = connection.getresponse()
            assert response.readline().startswith(b"data: ")
            assert gateway.stop(signal.SIGKILL) == -signal.SIGKILL
            assert gateway.chat() == 200
            assert response.read().endswith(b"data: [DONE]\n\n")
        until(lambda: not _lives(worker["pid"]))
        with pytest.raises(ConnectionRefusedError):
            gateway.chat()


def test_a_new_supervisor_takes_over_from_workers_that_lost_theirs(argv: list[str]) -> None:
    with Gateway(*argv, "--workers", "2") as gateway:
        orphans = [worker["pid"] for worker in gateway.status()["workers"]]
        try:
            assert gateway.stop(signal.SIGKILL) == -signal.SIGKILL
            assert gateway.chat() == 200
            connection = gateway.send("/v1/completions", STREAM)
            response = connection.getresponse()
            assert response.readline().startswith(b"data: ")
            with Gateway(*argv, port=gateway.port) as successor:
                assert successor.port == gateway.port
                with contextlib.closing(connection):
                    assert response.read().endswith(b"data: [DONE]\n\n")
                until(lambda: not any(map(_lives, orphans)))
                assert [successor.chat() for _ in range(10)] == [200] * 10
                # It is a gateway's again, and taken.
                with Gateway(*argv, port=gateway.port) as third:
                    assert third.process.wait(PATIENCE_S) == 2
                assert successor.stop() == 0
        finally:
            for pid in filter(_lives, orphans):
                os.kill(pid, signal.SIGKILL)


def test_a_tokenizer_that_cannot_be_loaded(argv: list[str], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with Gateway(*argv[:-1], f"demo={tmp_path}") as gateway:
        assert gateway.process.wait(PATIENCE_S) == 2
        assert gateway.process.stderr is not None
        errors = [line for line in gateway.process.stderr if line.startswith("tokenlane: ")]
        assert len(errors) == 1
        assert str(tmp_path) in errors[0]


def test_a_tokenizer_is_found_by_itself(tmp_path: Path) -> None:
    """The replica says where the model is, and it is on this machine."""
    root = tmp_path / "model"
    shutil.copytree(demo_folder(), root)
    port = free_ports(1)
    with (
        FleetProcess(1, port, ("--tokenizer", f"found={root}")) as fleet,
        Gateway("serve", "--backend", *fleet.urls) as gateway,
    ):
        line = gateway.line("tokenizer")
        assert f"found = {root}  (the model's folder, as its replica names it, " in line
        assert gateway.status()["tokenizers"] == {"found": str(root)}
        body = {"model": "found", "prompt": "Hello there", "max_tokens": 2}
        connection = gateway.send("/v1/completions", body)
        with contextlib.closing(connection):
            response = connection.getresponse()
            response.read()
        # It was read by its ids: what is cached is known exactly.
        assert response.getheader("x-tokenlane-cached-tokens") == "0"


def test_a_tokenizer_that_is_found_and_broken_keeps_nobody_from_serving(tmp_path: Path) -> None:
    root = tmp_path / "model"
    shutil.copytree(demo_folder(), root)
    with FleetProcess(1, free_ports(1), ("--tokenizer", f"found={root}")) as fleet:
        (root / "tokenizer.json").write_text("{}")
        patient = ("--tokens-ask-deadline-s", "30")
        with Gateway("serve", "--backend", *fleet.urls, *patient) as gateway:
            line = gateway.line("tokenizer")
            assert line.startswith(
                "found: none found, so its replicas are asked for ids (tokenizer of found: "
            )
            assert line.endswith(f"; {fleet.urls[0]}/tokenize answers)")
            status = gateway.status()
            assert (status["tokenizers"], status["tokenized_by_replicas"]) == ({}, ["found"])
            connection = gateway.send("/v1/completions", {"model": "found", "prompt": "x"})
            with contextlib.closing(connection):
                response = connection.getresponse()
                response.read()
            assert response.getheader("x-tokenlane-cached-tokens") == "0"


def test_a_replica_that_is_down_at_the_start_and_a_wrong_model_name() -> None:
    port = free_ports(1)
    backend = f"http://127.0.0.1:{port}"
    with Gateway("serve", "--backend", backend) as gateway:
        line = gateway.line("replica")
        assert line == (
            f"{backend}  down: nothing listens there; is vLLM running, and is the port right?"
        )
        assert "requests get 503 until one is" in gateway.line("warning")
        status, body = gateway.ask("/v1/completions", {"model": "demo", "prompt": "x"})
        assert status == 503
        with FleetProcess(1, port):
            until(lambda: gateway.ask("/readyz", admin=True)[0] == 200)
            until(lambda: gateway.chat() == 200)
            status, body = gateway.ask("/v1/completions", {"model": "dmeo", "prompt": "x"})
            assert status == 404
            assert json.loads(body)["error"]["message"] == (
                'The model "dmeo" does not exist; did you mean "demo"? Served: demo.'
            )


def test_a_replica_that_goes_down_is_a_warning_with_its_status() -> None:
    class Replica(BaseHTTPRequestHandler):
        status = 200

        def do_GET(self) -> None:
            self.send_response(self.status)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Replica) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        id_ = f"127.0.0.1:{server.server_port}"
        with Gateway("serve", "--backend", f"http://{id_}") as gateway:
            assert gateway.line("replica").startswith(f"http://{id_}  up  ")
            Replica.status = 401
            assert gateway.process.stderr is not None
            down = next(line for line in gateway.process.stderr if "is down" in line)
            assert down.endswith(f" WARNING supervisor fleet replica {id_} is down (status 401)\n")
            assert gateway.stop() == 0
        server.shutdown()


def test_the_demo_prints_a_curl_that_works_and_leaves_nothing_behind() -> None:
    with Gateway("demo", "--replicas", "2") as gateway:
        lines = []
        assert gateway.process.stdout is not None
        for line in gateway.process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        curl = next(line for line in lines if line.startswith("curl"))
        body = next(line for line in lines if line.startswith("  -d '"))
        assert f"127.0.0.1:{gateway.port}/v1/chat/completions" in curl
        status, answer = gateway.ask("/v1/chat/completions", json.loads(body.strip()[4:-1]))
        assert status == 200
        assert json.loads(answer)["choices"][0]["message"]["content"]
        replicas = [int(row["url"].rsplit(":", 1)[1]) for row in gateway.status()["replicas"]]
        assert len(replicas) == 2
        assert gateway.stop(signal.SIGINT) == 0
        for port in replicas:
            with pytest.raises(ConnectionRefusedError):
                http.client.HTTPConnection("127.0.0.1", port).connect()

"""The command line: flags over file over defaults, and one sentence for what is wrong."""

import argparse
import io
import json
import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from tokenlane import __version__
from tokenlane.cli.main import VERBS, Verb, main, parser
from tokenlane.config.options import OPTIONS, options_of
from tokenlane.config.settings import Settings
from tokenlane.errors import error_body
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.tokens.demo import demo_folder

# A verb that serves sets up this process' logs.
pytestmark = pytest.mark.usefixtures("logging_as_it_was")

BACKEND = ("--backend", "http://127.0.0.1:9")


def test_python_dash_m() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tokenlane", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"tokenlane {__version__}\n"


def test_help_names_the_verbs_there_are() -> None:
    text = parser().format_help()
    verbs = "serve demo simulate explain replay check-config print-config healthcheck doctor top"
    for verb in [*verbs.split(), "completion"]:
        assert verb in text


@pytest.mark.parametrize("verb", ["serve", "demo", "simulate", "healthcheck", "top"])
def test_help_shows_defaults(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert "default: " in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_help_says_what_each_flag_is(verb: Verb) -> None:
    made = argparse.ArgumentParser()
    verb.flags(made)
    for action in made._actions:
        if action.option_strings:
            assert action.help
            assert action.help == argparse.SUPPRESS or re.match(r"[a-zA-Z`]", action.help)
    assert "default: )" not in made.format_help()


def test_every_setting_of_a_simulated_replica_has_a_flag() -> None:
    flags = parser().parse_args(["simulate"]).flags()
    for option in options_of(SimulatorSettings).values():
        assert option.flag in flags or option.path in {"model", "folder"}


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["serve"], "give at least one --backend"),
        (["serve", "--backend", "ftp://x"], "must look like http://HOST:PORT"),
        (["serve", *BACKEND, *BACKEND], "listed twice"),
        (
            ["serve", *BACKEND, "--policy", "best"],
            "routing.policy: 'best' is unknown; choose one of affinity",
        ),
        (["serve", *BACKEND, "--workers", "0"], "must be a whole number from 1 to 64"),
        (
            ["serve", *BACKEND, "--tokenizer", "m=/nowhere"],
            "/nowhere/tokenizer.json cannot be read; --tokenizer m=DIR names the folder",
        ),
        (["serve", *BACKEND, "--config", "/nowhere.yaml"], "directory); check --config"),
        (["serve", *BACKEND, "--host", "no.such.host.invalid"], "check --host"),
        (
            ["serve", *BACKEND, "--port", "70000"],
            "--port: server.port: must be a whole number from 0 to 65535, and is 70000",
        ),
        (["serve", *BACKEND, "--tokenizer", "m"], "--tokenizer: 'm' must look like MODEL=DIR"),
        (["serve", *BACKEND, "--port", "many"], "--port: 'many' must be a whole number"),
        (["print-config", "--config", "/nowhere.yaml"], "cannot be read"),
        (["serve", "--backend", "h:80"], "; did you mean http://h:80?"),
        (["serve", "--backend", "http://h:80/v1"], "after its port; did you mean http://h:80?"),
        (["simulate", "--replicas", "0"], "--replicas must be at least 1"),
        (["simulate", "--port", "65535"], "do not make a range"),
        (["simulate", "--block-tokens", "many"], "block_tokens"),
        (["simulate", "--block-tokens", "0"], "block_tokens"),
        (["top", "--admin", "ftp://127.0.0.1"], "must look like http://HOST:PORT"),
        (["demo", "--replicas", "0"], "--replicas must be at least 1"),
        (["healthcheck", "--timeout-s", "-1"], "--timeout-s must be above 0, and at most 86400"),
        (["healthcheck", "--timeout-s", "nan"], "--timeout-s must be above 0, and at most 86400"),
        (["healthcheck", "--timeout-s", "1e300"], "--timeout-s must be above 0, and at most 86400"),
        (["explain", "-", "--header", "x-user"], "'x-user': must look like 'Name: value'"),
        (["explain", "-", "--header", "x-usér: a"], "'x-usér: a': must have a name in ASCII"),
    ],
)
def test_one_sentence_and_exit_code_2(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.splitlines()
    assert line.startswith("tokenlane: ")
    assert sentence in line


def test_a_replica_of_no_encoding_is_asked_for_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["replicas", "drain", "a\udcff", "--admin", "http://127.0.0.1:9"]) == 1
    assert "no gateway answers at http://127.0.0.1:9" in capsys.readouterr().err


def test_a_flag_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--bakend", "http://127.0.0.1:1"])
    said = capsys.readouterr().err
    assert said.endswith("unrecognized arguments: --bakend; did you mean --backend?\n")


def test_a_replica_where_a_file_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "http://127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert said.endswith("is not a settings file; did you mean --backend http://127.0.0.1:1?\n")


def test_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "gateway.yaml")
    assert main(["print-config", file, "--config", file]) == 2
    assert "two settings files are given" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["serve", "check-config", "print-config", "doctor"])
def test_a_file_without_its_flag(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("servr: {}\n")
    assert main([verb, str(file)]) in (1, 2)
    assert f"{file}:1: servr: there is no such setting" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["healthcheck", "top", "reload", "replicas --config", "explain -"])
def test_a_running_gateway_is_asked_whatever_became_of_its_file(
    verb: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("servr: {}\nserver: {port: x}\nadmin: {port: 9}\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    argv = verb.split() + ["--config"] * (verb == "explain -")
    assert main([*argv, str(file)]) == 1
    said = capsys.readouterr().err
    assert "no gateway answers at http://127.0.0.1:9 (" in said
    assert str(file) not in said


def test_an_admin_port_that_is_none_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("admin: {prot: 9}\n")
    assert main(["reload", str(file)]) == 2
    assert f"{file}:1: admin.prot: there is no such setting" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["admin: {port: x}", "server: [", "server: {port: x}"])
def test_a_health_check_never_ends_with_dockers_own_exit_code(
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is told of a file that says nothing of the admin port, and asks by variables and flags."""
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    monkeypatch.setenv("TOKENLANE_ADMIN_PORT", "9")
    assert main(["healthcheck", "--config", str(file)]) == 1
    *told, asked = capsys.readouterr().err.splitlines()
    assert [line.startswith(f"tokenlane: {file}:1: ") for line in told] == [True] * len(told)
    assert bool(told) == ("server: {" not in text)
    assert "no gateway answers at http://127.0.0.1:9 (" in asked


def test_a_verb_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["server"])
    assert (
        "there is no 'server'; did you mean serve? It is one of serve," in capsys.readouterr().err
    )
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "check whether the settings would serve" in capsys.readouterr().err


def test_a_variable_that_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLANE_PROT", "80")
    assert main(["check-config", *BACKEND]) == 0
    assert capsys.readouterr().err == (
        "tokenlane: the variable TOKENLANE_PROT is not a setting; did you mean TOKENLANE_PORT?\n"
    )


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_a_taken_port(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        free = {"--port": "0", "--admin-port": "0"} | {flag: port}
        assert main(["serve", *BACKEND, *(word for pair in free.items() for word in pair)]) == 2
    assert f"port {port} on 127.0.0.1 is already taken; choose another {flag}" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "words",
    [
        "add http://127.0.0.1:1 --admin-port 9",
        "add --admin-port 9 http://127.0.0.1:1",
        "--admin-port 9 add http://127.0.0.1:1",
        "--admin-port 9",
        "list --admin-port 9",
    ],
)
def test_flags_stand_where_they_like(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replicas", *words.split()]) == 1
    assert "no gateway answers at http://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.slow
def test_a_taken_port_of_the_demo_is_told_for_make_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["demo", "--replicas", "1", "--port", port, "--admin-port", "0"]) == 2
    assert capsys.readouterr().err.endswith(
        f"port {port} on 127.0.0.1 is already taken; choose another --port (make run PORT=8090)\n"
    )


@pytest.mark.parametrize(
    "argv", [[], ["fly"], ["serve", "--port"], ["serve", "--por", "1"], ["completion", "csh"]]
)
def test_bad_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage: tokenlane" in capsys.readouterr().err


def test_flags_over_file_over_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "backends: [http://a:1, http://b:2]\n"
        "server: {port: 1000, workers: 3}\n"
        "tokens: {folders: {m: /m, n: /n}}\n"
    )
    argv = ["print-config", "--config", str(file), "--port", "2000", "--tokenizer", "n=/other"]
    assert main(argv) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["backends"] == ["http://a:1", "http://b:2"]
    assert (shown["server"]["port"], shown["server"]["workers"]) == (2000, 3)
    assert shown["server"]["host"] == Settings().server.host
    assert shown["tokens"]["folders"] == {"m": "/m", "n": "/other"}
    assert main([*argv, *BACKEND]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["backends"] == ["http://127.0.0.1:9"]


def test_print_config_says_where_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("server: {port: 1000}\n")
    monkeypatch.setenv("TOKENLANE_CONFIG", str(file))
    monkeypatch.setenv("TOKENLANE_WORKERS", "3")
    assert main(["print-config", *BACKEND]) == 0
    printed = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert "backends: ['http://127.0.0.1:9'] # --backend" in lines
    assert f"port: 1000 # {file}:1; restart" in lines
    assert "workers: 3 # TOKENLANE_WORKERS; restart" in lines
    assert "policy: affinity # default" in lines
    # And it is a file again.
    (tmp_path / "printed.yaml").write_text(printed)
    monkeypatch.delenv("TOKENLANE_WORKERS")
    assert main(["print-config", "--config", str(tmp_path / "printed.yaml")]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == yaml.safe_load(printed)


def test_print_config_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["print-config", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "tokenlane"


@pytest.mark.parametrize("flag", ["--backend", "--worker-urls", "--static-backends"])
@pytest.mark.parametrize(
    "words", [("http://a:1,http://b:2",), ("http://a:1", "http://b:2")], ids=["commas", "words"]
)
def test_other_routers_words_for_replicas(
    flag: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["print-config", flag, *words]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["backends"] == ["http://a:1", "http://b:2"]


def test_every_setting_is_in_the_help_with_its_variable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help=all"])
    text = " ".join(capsys.readouterr().out.split())
    for option in OPTIONS.values():
        # Python 3.13 names the value once, behind all spellings of a flag.
        assert f"{option.flag} " in text or f"{option.flag}, " in text
        assert f"[{option.variable}, {option.path}]" in text
        if option.default_text:
            assert f"default: {option.default_text})" in text
    assert "(seconds; default: 4.0) [TOKENLANE_UPSTREAM_IDLE_DEADLINE_S" in text


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_help_is_a_page(
    verb: Verb, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([verb.name, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert len(text.splitlines()) <= 60
    if verb.name == "serve":
        # Python 3.13 names the value once, behind all spellings of a flag.
        assert re.search(r"^  --backend\b.*\bURL\b", text, re.MULTILINE)
        assert "  upstream    Connections to replicas\n" in text
        assert "--upstream-idle-deadline-s" not in text


def test_a_variable_with_a_typo_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENLANE_PROT", "9000")
    assert main(["serve"]) == 2
    assert "the variable TOKENLANE_PROT is not a setting" in capsys.readouterr().err


def test_check_config_names_all_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("server:\n  prot: 1\n  workers: two\nbackends: [ftp://a]\n")
    assert main(["check-config", "--config", str(file)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"tokenlane: {file}:2: server.prot: there is no such setting; did you mean server.port?",
        f"tokenlane: {file}:3: server.workers: must be a whole number from 1 to 64, and is text",
        f"tokenlane: {file}:4: backends[0]: 'ftp://a' must look like http://HOST:PORT",
    ]
    assert main(["serve", "--config", str(file)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "(and 2 more: tokenlane check-config names them all)" in line


def test_check_config_loads_the_tokenizers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-config", *BACKEND, "--tokenizer", f"demo={demo_folder()}"]) == 0
    assert capsys.readouterr().out == "ok: 1 replica(s), 1 tokenizer(s), policy affinity\n"
    (tmp_path / "tokenizer.json").write_text("{}")
    assert main(["check-config", *BACKEND, "--tokenizer", f"demo={tmp_path}"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["check-config"]) == 1
    assert "give at least one --backend" in capsys.readouterr().err


def test_check_config_may_ask_the_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert main(["check-config", "--backend", url, "--probe"]) == 1
    said = capsys.readouterr().out
    assert f"FAIL  replica {url}: nothing listens there; is vLLM running" in said


@pytest.mark.parametrize(
    ("status", "body", "code", "said"),
    [
        (200, b"{}", 0, "ready\n"),
        (503, error_body("No replica is up.", "server_error"), 1, "not ready: No replica is up.\n"),
        (500, b"<html>", 1, "not ready: status 500\n"),
    ],
)
@pytest.mark.parametrize("flag", ["--admin {0}", "--admin-port {1}"])
def test_healthcheck(
    flag: str, status: int, body: bytes, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/readyz"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["healthcheck", *flag.format(url, server.server_port).split()]) == code
        thread.join()
    captured = capsys.readouterr()
    assert captured.out + captured.err == said


def test_healthcheck_of_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert main(["healthcheck", "--admin-port", str(port)]) == 1
    assert capsys.readouterr().err == (
        f"not ready: no gateway answers at http://127.0.0.1:{port} (Connection refused);"
        " is it running, and is this its admin port?\n"
    )


@pytest.mark.parametrize(
    ("argv", "where"),
    [
        (["healthcheck", "--admin-host", "a..b"], "http://a..b:8081 ("),
        (["healthcheck", "--admin-host", "["], "http://[:8081 ("),
        (["replicas", "--admin", "http://127.0.0.1:1/ä"], "http://127.0.0.1:1/ä ("),
    ],
)
def test_an_address_that_is_none(
    argv: list[str], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert f"no gateway can be asked at {where}" in line
    assert line.endswith("); it must look like http://HOST:PORT")


@pytest.mark.parametrize(
    "verb",
    ["replicas list", "replicas list --json", "replicas drain a:1", "reload", "explain -",
     "explain - --json", "top --once"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b'{"status":"ok"}'),
        (200, b"[]"),
        (200, b'{"replicas":[{"id":1}]}'),
        (404, b"<html>"),
        # As a gateway's data port does.
        (404, error_body("This path is not served here.", "x", code="not_found")),
    ],
)
def test_another_service_at_the_admin_port(
    verb: str,
    status: int,
    body: bytes,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *args: object) -> None:
            pass

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main([*verb.split(), "--admin", url]) == 1
        thread.join()
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        f"tokenlane: {url} answers with something else: is it the admin port of a gateway?\n",
    )


def test_a_header_to_explain_is_sent_as_it_was_given(tmp_path: Path) -> None:
    users = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            users.append(self.headers["x-user"].encode("latin-1"))
            self.send_error(400)

        def log_message(self, *args: object) -> None:
            pass

    file = tmp_path / "request.json"
    file.write_text("{}")
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["explain", str(file), "--admin", url, "--header", "X-User: 日本\udcff"]) == 1
        thread.join()
    assert users == ["日本".encode() + b"\xff"]

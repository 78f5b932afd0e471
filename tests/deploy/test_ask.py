"""What `helm test` runs in the chart's pod, against a gateway and against what may be wrong."""

import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.deploy.demo import demo
from tests.paths import ROOT

SCRIPT = (ROOT / "deploy" / "helm" / "tokenlane" / "files" / "ask.py").read_text(encoding="utf-8")


def ask(admin_port: int, port: int) -> tuple[int, str]:
    """Run the script as the pod does; return its exit code and what it says."""
    urls = [f"http://127.0.0.1:{one}" for one in (admin_port, port)]
    argv = [sys.executable, "-c", SCRIPT, *urls]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_gateway_that_serves(tmp_path: Path) -> None:
    with demo([sys.executable, "-m", "tokenlane"], tmp_path) as port:
        assert ask(port + 1, port) == (0, "ready\nmodels: demo\n")


@pytest.mark.parametrize(
    ("ready", "models", "code", "said"),
    [
        (503, 200, 1, "not ready (503): why\n"),
        (200, 401, 0, "ready\nmodels: for clients with a key\n"),
        (200, 500, 1, "ready\nhttp://127.0.0.1:{port}/v1/models answers 500: why\n"),
    ],
)
def test_what_may_be_wrong(ready: int, models: int, code: int, said: str) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Host"] == "localhost"
            self.send_response({"/readyz": ready, "/v1/models": models}[self.path])
            self.end_headers()
            self.wfile.write(b"why")

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        port = server.server_port
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            assert ask(port, port) == (code, said.format(port=port))
        finally:
            server.shutdown()
            serving.join()


def test_nobody_there() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_port
    code, said = ask(port, port)
    assert code == 1
    assert said.startswith(f"http://127.0.0.1:{port}/readyz does not answer: ")
    assert "Traceback" not in said

"""Keys in a whole gateway: real processes, a replica that wants its key, and no key anywhere."""

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.control.test_supervisor import PATIENCE_S, Gateway, until

pytestmark = pytest.mark.slow

CLIENT_KEY, WRONG_KEY, REPLICA_KEY = (f"sk-Xq7canary-{who}" for who in ("client", "none", "own"))
CHAT = "/v1/chat/completions"


class Guarded(BaseHTTPRequestHandler):
    """A replica started with `--api-key`: only /health is open."""

    protocol_version = "HTTP/1.1"

    def answer(self, value: Any) -> None:
        good = self.headers["authorization"] == f"Bearer {REPLICA_KEY}"
        open_to_all = self.path in ("/health", "/metrics", "/kv_event_sources")
        body = json.dumps(value if good else {}).encode()
        self.send_response(200 if good or open_to_all else 401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer({"object": "list", "data": [{"id": "demo"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.answer({"choices": []})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
        """Nothing: what is written is what is looked for."""


@pytest.fixture
def replica() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Guarded)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def ask(gateway: Gateway, path: str, key: str | None, body: Any = None) -> tuple[int, str]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        payload = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, payload, headers)
        response = connection.getresponse()
        return response.status, f"{response.headers}{response.read().decode()}"


@pytest.mark.row("S4", "S5")
def test_keys_are_used_and_never_shown(
    replica: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, keys, config = tmp_path / "access.log", tmp_path / "keys.yaml", tmp_path / "gateway.yaml"
    digest = sha256(CLIENT_KEY.encode()).hexdigest()
    keys.write_text(json.dumps([{"digest": digest, "tenant": "search"}]))
    settings = {
        "auth": {"keys_file": str(keys)},
        "log": {"access": str(log), "format": "json", "sample_ratio": 1.0},
    }
    config.write_text(json.dumps(settings))
    monkeypatch.setenv("TOKENLANE_UPSTREAM_API_KEY", REPLICA_KEY)
    seen = []
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
    with Gateway("serve", "--config", str(config), "--backend", replica) as gateway:
        for path, key, sent, status in (
            ("/health", None, None, 200),
            ("/v1/models", None, None, 401),
            ("/v1/models", CLIENT_KEY, None, 200),
            (CHAT, WRONG_KEY, body, 401),
            (CHAT, CLIENT_KEY, body, 200),
            (CHAT, CLIENT_KEY, {**body, "model": "none-such"}, 404),
            (f"/{WRONG_KEY}", CLIENT_KEY, body, 404),
        ):
            answered, text = ask(gateway, path, key, sent)
            assert (path, answered) == (path, status)
            seen.append(text)
        until(lambda: len(log.read_text().splitlines()) >= 7)
        pages = ("/metrics", "/status.json", "/replicas", "/readyz")
        seen += [gateway.ask(page, admin=True)[1].decode() for page in pages]
        assert 'tokenlane_tenant_requests_total{outcome="ok",tenant="search"} 2' in seen[-4]
        assert 'tokenlane_unauthorized_total{reason="unknown"} 1' in seen[-4]
        assert gateway.stop() == 0
        assert gateway.process.stdout is not None
        assert gateway.process.stderr is not None
        seen += [*gateway.said, gateway.process.stdout.read(), gateway.process.stderr.read()]
    seen.append(log.read_text())
    tenants = [json.loads(line)["tenant"] for line in seen[-1].splitlines()]
    assert tenants == ["", "other", "search", "other", "search", "search", "search"]
    assert "canary" not in "".join(seen)
    assert digest not in "".join(seen)

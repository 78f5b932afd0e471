"""HTTP knows nothing of models: both its sides work without the rooms that do."""

import json
import os
import subprocess
import sys

SCRIPT = """
import asyncio, json, socket, sys
from tokenlane.http.server import HttpServer
from tokenlane.config.settings import ServerSettings, UpstreamSettings
from tokenlane.errors import RequestError
from tokenlane.http.fetch import fetch
from tokenlane.http.pool import ReplicaPool

async def handler(exchange):
    if exchange.path == "/v1/messages":
        raise RequestError(404, "No.", code="no")
    exchange.respond(200, (), await exchange.read_body())

async def main():
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = HttpServer(handler, ServerSettings(drain_linger_s=0.0))
    await server.listen(sock)
    pool = ReplicaPool(f"http://127.0.0.1:{sock.getsockname()[1]}", UpstreamSettings())
    answers = [await fetch(pool, path, b"hello", 10.0) for path in ("/echo", "/v1/messages")]
    pool.close()
    await server.drain(10.0)
    return [(status, body.decode()) for status, body in answers]

answers = asyncio.run(main())
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("tokenlane.")}
print(json.dumps([answers, sorted(rooms)]))
"""


def test_both_sides_work_alone() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    [[echoed, refused], rooms] = json.loads(ended.stdout)
    assert echoed == [200, "hello"]
    assert (refused[0], json.loads(refused[1])["error"]["code"]) == (404, "no")
    assert "http" in rooms
    others = {"protocols", "tokens", "routing", "relay", "gateway", "admission"}
    assert not others & set(rooms)

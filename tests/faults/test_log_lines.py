"""A replica and a client that would write in the gateway's logs: names of models, paths, ids and
headers that hold line ends, escapes of terminals and what looks like a line.

A model's name broke the lines of the access log's text form.
"""

import asyncio
import json
from pathlib import Path

import pytest

from bench.tools.planted import PLANTED_GATEWAY, VARIABLE
from tests.control.test_supervisor import Gateway
from tests.raw import CHAT, Client, Peer, Upstream, chat, json_bytes, ok, post

FORGED = "2026-01-01 00:00:00,000 ERROR"
ODD = f"m\r\n{FORGED} forged \x1b[2J\x00\x07\x7f\x85\u2028\u202e"
PATHS = (
    b"/%0d%0a" + FORGED.replace(" ", "%20").encode(),
    b"/replicas/m%0d%0a" + FORGED.replace(" ", "%20").encode() + b"%1b[2J/drain",
    b"/replicas/m%0d%0a%c2%85%e2%80%a8",
    "/é\x85".encode(),
    b"/\x1b[2J",
    b"/\x00",
)


async def replica(peer: Peer) -> None:
    """Its model has a name to break lines with; it answers whatever is asked."""
    while True:
        try:
            asked = await peer.asked()
        except (EOFError, ConnectionError):
            return
        path = asked.line.split()[1]
        if path == b"/v1/models":
            cards = [{"id": name, "max_model_len": 999, "root": ODD} for name in (ODD, "demo")]
            await peer.send(ok(json_bytes({"data": cards})))
        elif path == b"/version":
            await peer.send(ok(json_bytes({"version": ODD})))
        elif path == b"/metrics":
            await peer.send(ok(f'vllm:num_requests_running{{model_name="{ODD}"}} x\n'.encode()))
        elif path.startswith(b"/v1/"):
            usage = {"prompt_tokens": 77, "completion_tokens": 1}
            await peer.send(ok(json_bytes({"id": ODD, "model": ODD, "usage": usage})))
        else:
            await peer.send(ok(json_bytes({"tokens": [ODD], "sources": [ODD]})))


async def send_odd(gate: Gateway) -> None:
    """Whatever could get into a line. Nothing is said of the answers."""
    for port in (gate.port, gate.admin_port):
        for method in (b"GET", b"POST", b"DELETE", b"\x1b[2J"):
            for path in PATHS:
                client = await Client.connect(port)
                field = b"x-request-id: %b\r\nx-a: \xff\r\n" % FORGED.encode()
                await client.send(
                    b"%b %b HTTP/1.1\r\nhost: localhost\r\n%b" % (method, path, field)
                )
                await client.send(b"content-length: 0\r\n\r\n")
                await client.through(b" ")
                client.close()
    client = await Client.connect(gate.port)
    for model in (ODD, "demo", f"no {ODD}"):
        for more in ({}, {"user": ODD, "cache_salt": ODD}):
            answer = await client.ask(post(CHAT, chat(ODD, model=model, **more)))
            assert answer.status == (404 if model.startswith("no") else 200)
    client.close()


@pytest.mark.row("S1")
@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "json"])
async def test_nobody_else_writes_in_a_log(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "access.log"
    monkeypatch.setenv(VARIABLE, "inspect:spin:0.02:1")
    options = ("--log-access", str(log), "--log-format", form, "--log-sample-ratio", "1")
    async with Upstream(replica) as upstream:
        gate = await asyncio.to_thread(
            Gateway, "serve", "--backend", upstream.url, *options, program=PLANTED_GATEWAY
        )
        with gate:
            await send_odd(gate)
            stalls = (await asyncio.to_thread(gate.ask, "/stalls", admin=True))[1].decode()
            status = (await asyncio.to_thread(gate.ask, "/status.json", admin=True))[1].decode()
            assert await asyncio.to_thread(gate.stop) == 0
            assert gate.process.stderr is not None
            said = gate.process.stderr.read()
    written = log.read_bytes().decode()
    assert ODD in json.loads(status)["replicas"][0]["models"]  # the name has arrived
    assert "m\\r\\n" in written or json.dumps("m\\r\\n")[1:-1] in written
    assert json.loads(stalls)["stalls"], stalls
    assert said.count("was refused") >= 2  # and paths
    for name, text in {"stderr": said, "access": written, "stalls": stalls}.items():
        for line in text.split("\n"):
            assert line.isprintable(), (name, line)
            assert not line.startswith(FORGED), (name, line)

"""What a process loads before it is asked for anything: what it does not need only costs time. And
a start that is called off."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.raw import Upstream, answering, ok

# What takes 20 ms or more to load. The tokenizer's engines are the workers' business, HTTP with
# comfort, YAML and the replicas' events the control plane's, and a health check needs nothing.
ENGINES = {"tokenizers", "fastokens", "jinja2", "minijinja", "httptools"}
COMFORTS = {"aiohttp", "prometheus_client", "zmq", "hdrh"}
RARE = {"dns", "huggingface_hub", "opentelemetry"}
NOT_LOADED = {
    "tokenlane.cli.main": {*ENGINES, *COMFORTS, *RARE, "asyncio", "uvloop", "xxhash"},
    "tokenlane.control.supervisor": {*ENGINES, *RARE, "tokenlane.gateway.request"},
    "tokenlane.worker.main": {*COMFORTS, *RARE, "yaml"},
}


@pytest.mark.slow
@pytest.mark.parametrize("module", NOT_LOADED)
def test_a_start_loads_what_it_needs(module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert NOT_LOADED[module].isdisjoint(json.loads(told.stdout))


@pytest.mark.slow
async def test_a_signal_ends_a_start_that_waits_for_a_hub(tmp_path: Path) -> None:
    listed = ok(b'{"data": [{"id": "org/m"}]}')
    with socket.create_server(("127.0.0.1", 0)) as hub:  # takes connections, never answers
        hub.setblocking(False)
        environ = {
            **os.environ,
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}",
            "HF_HUB_CACHE": str(tmp_path),
            "HF_HUB_ETAG_TIMEOUT": "600",
        }
        argv = ("--port", "0", "--admin-port", "0", "--tokens-fetch-deadline-s", "600")
        async with Upstream(answering(listed)) as replica:
            gate = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tokenlane", "serve", "--backend", replica.url, *argv),
                env=environ,
            )
            try:
                async with asyncio.timeout(30):
                    client, _ = await asyncio.get_running_loop().sock_accept(hub)
                    gate.send_signal(signal.SIGTERM)
                    assert await gate.wait() == 0
            finally:
                if gate.returncode is None:
                    gate.kill()
                    await gate.wait()
            client.close()

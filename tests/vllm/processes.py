"""Processes that the end-to-end tests start: vLLM servers, the gateway. Not imported elsewhere.

Invariants:
- Every process gets a session of its own and is ended by its process group's id: vLLM's engine
  and worker processes go with it.
- Logs are kept under build/vllm-logs; a failure to start quotes the log's end.
"""

import http.client
import json
import os
import random
import signal
import subprocess
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from bench.tools import tiny_model
from bench.tools import vllm_server as bench_server
from tests.paths import ROOT
from tokenlane.runtime.ports import free_ports

LOGS = ROOT / "build" / "vllm-logs"
START_DEADLINE_S = 300.0
STOP_DEADLINE_S = 20.0

write_model = tiny_model.write_model
VLLM_ENVIRONMENT = bench_server.ENVIRONMENT
VLLM_FLAGS = (
    "--load-format dummy --served-model-name tiny --host 127.0.0.1 --dtype bfloat16 "
    "--enforce-eager --max-model-len 32768 --max-num-seqs 16 --block-size 32 "
    "--kv-cache-memory-bytes 134217728 --enable-prompt-tokens-details "
    "--enable-auto-tool-choice --tool-call-parser hermes"
).split()
# Serves /render and /derender, which older versions, without this flag, do anyway.
RENDER_FLAG = "--enable-scale-out"


def vllm_python() -> Path:
    """The interpreter that has vLLM, if there is one."""
    # Not resolved: the venv's python is a link, and its own place says where its packages are.
    return ROOT / os.environ.get("VLLM_PYTHON", ".venv-vllm/bin/python")


class Server:
    """A process that listens on 127.0.0.1:`port` and answers /health."""

    def __init__(self, name: str, command: Sequence[str], port: int, **environment: str) -> None:
        self.name, self.port = name, port
        self.url = f"http://127.0.0.1:{port}"
        self.log = LOGS / f"{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._started_s = time.monotonic()
        self.ready_after_s = 0.0
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                list(command),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env=os.environ | environment,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Returns when /health says 200; raises with the log's end if it never will."""
        deadline_s = self._started_s + START_DEADLINE_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            try:
                if self.request("GET", "/health", timeout_s=2.0)[0] == 200:
                    self.ready_after_s = time.monotonic() - self._started_s
                    return
            except OSError:
                pass
            time.sleep(0.2)
        tail = self.log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{self.name} did not become healthy:\n{tail}")

    def request(
        self, method: str, path: str, body: Any = None, timeout_s: float = 60.0, **headers: str
    ) -> tuple[int, bytes]:
        """Status and body of one request on a connection of its own. Raises OSError."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(
                method, path, payload, {"content-type": "application/json"} | headers
            )
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and decoded JSON of a POST."""
        status, answer = self.request("POST", path, body)
        return status, json.loads(answer)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples in /metrics."""
        _, text = self.request("GET", "/metrics")
        lines = [line for line in text.decode().splitlines() if line.startswith(name)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def stop(self) -> None:
        """Ends the process and its children."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, sent)
                try:
                    self.process.wait(STOP_DEADLINE_S)
                except subprocess.TimeoutExpired:
                    continue
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


@contextmanager
def healthy(server: Server) -> Iterator[Server]:
    """A server for as long as it is needed, once it is healthy."""
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def vllm_server(name: str, python: Path, folder: Path, *flags: str) -> Server:
    """A vLLM server on a model folder; not awaited. flags: more of them, and other values."""
    port = free_ports(1)
    command = [str(python), *bench_server.SERVE, str(folder), *VLLM_FLAGS, *flags]
    if _knows(python, RENDER_FLAG):
        command.append(RENDER_FLAG)
    return Server(name, [*command, "--port", str(port)], port, **VLLM_ENVIRONMENT)


def _knows(python: Path, flag: str) -> bool:
    """Whether this vLLM's API server has a flag, by its source: asking it takes ten seconds."""
    packages = python.parent.parent.glob("lib/python3*/site-packages/vllm/entrypoints")
    sources = [source for package in packages for source in package.rglob("cli_args.py")]
    field = flag.removeprefix("--").replace("-", "_") + ":"
    return not sources or any(field in one.read_text(encoding="utf-8") for one in sources)


def write_adapter(folder: Path) -> Path:
    """A LoRA adapter of that Llama, of random weights that change its answers."""
    folder.mkdir(parents=True, exist_ok=True)
    rank, width = 8, tiny_model.MODEL_CONFIG["hidden_size"]
    modules = ("q_proj", "v_proj")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 64}
    config |= {"target_modules": modules, "bias": "none", "base_model_name_or_path": "tiny"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    rng, header, data = random.Random(7), {}, b""
    for layer, module in product(range(tiny_model.MODEL_CONFIG["num_hidden_layers"]), modules):
        for part, shape in (("lora_A", (rank, width)), ("lora_B", (width, rank))):
            weights = array("f", (rng.uniform(-1, 1) for _ in range(rank * width))).tobytes()
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}.{part}.weight"
            offsets = [len(data), len(data) + len(weights)]
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
            data += weights
    head = json.dumps(header).encode()
    safetensors = len(head).to_bytes(8, "little") + head + data
    (folder / "adapter_model.safetensors").write_bytes(safetensors)
    return folder

"""A real vLLM server with a tiny model: where its Python is, how it is started, and its processes.

Invariants:
- `VLLM_PYTHON` names the interpreter; without it `.venv-vllm` is used (scripts/vllm_python.sh).
- A laboratory lends its experiments one server: a start takes a minute. An experiment finds its
  prefix cache empty. One that needs other flags starts its own.
- The front end is all of the server but the engine's core and its workers: HTTP, templates,
  tokenizing and detokenizing. CPU is told apart so.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from bench.tools import accelerator, scrape
from bench.tools.client import fetch
from bench.tools.demo_model import MODEL, MODEL_FOLDER
from bench.tools.paths import ROOT
from bench.tools.processes import BenchError, Process, free_ports, pause, say
from bench.tools.scrape import Samples
from bench.tools.tiny_model import write_model

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Compiling a log-probability helper costs 17 s and needs a C++ compiler.
    "TORCHDYNAMO_DISABLE": "1",
    # Several servers share few cores: no pinning, one thread each.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # Responses are kept, to be asked for and gone on from.
    "VLLM_ENABLE_RESPONSES_API_STORE": "1",
    # Adds POST /reset_prefix_cache.
    "VLLM_SERVER_DEV_MODE": "1",
    # As the command sets it.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
# `vllm serve`, which the module of the API server is not: that starts a single one, whatever the
# flags say. The command itself asks for the version of a distribution that the CPU build is not.
_COMMAND = """
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser, serve = FlexibleArgumentParser(), ServeSubcommand()
serve.subparser_init(parser.add_subparsers(dest="subparser"))
arguments = parser.parse_args()
serve.validate(arguments)
serve.cmd(arguments)
"""
SERVE = ("-c", _COMMAND, "serve")
CONTEXT_TOKENS = 32_768
# 512 bytes a token of this model: a million tokens of cache.
FLAGS = (
    f"--load-format dummy --served-model-name {MODEL} --host 127.0.0.1 --dtype bfloat16 "
    f"--enforce-eager --max-model-len {CONTEXT_TOKENS} --max-num-seqs 256 --block-size 32 "
    "--kv-cache-memory-bytes 536870912 --enable-per-request-metrics --disable-uvicorn-access-log"
).split()
MODEL_WORDS = "a Llama of two layers, 64 wide, with random weights: its prefill is cheap"
START_DEADLINE_S = 300.0
_LENT = "BENCH_VLLM_SERVER"
_ENGINE_TITLES = ("VLLM::EngineCore", "VLLM::Worker")


class Part:
    """Some processes of a server. They must all live when this is made."""

    def __init__(self, processes: list[psutil.Process]) -> None:
        self._processes = processes

    def tree(self) -> list[psutil.Process]:
        """Return the processes, without those that descend from them."""
        return self._processes

    def cpu_s(self) -> float:
        """Return the CPU seconds, user and system, that they have had."""
        times = [one.cpu_times() for one in self._processes]
        return sum(one.user + one.system for one in times)


class Server(msgspec.Struct, frozen=True):
    """A healthy server. front: its front end; engine: core and workers; log: what it printed."""

    port: int
    front: Part
    engine: Part
    log: Path

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    def metrics(self) -> Samples:
        """Return what its /metrics says now. Raise BenchError where it does not answer."""
        answer = fetch(self.port, "/metrics", deadline_s=60.0)
        if answer.status != 200:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise BenchError(f"vLLM's /metrics answers {answer.status}: {tail}")
        return scrape.parse(answer.body.decode())

    def about(self) -> str:
        """Return its version and what it runs on, as a remark."""
        version = msgspec.json.decode(fetch(self.port, "/version").body or b"{}").get("version")
        return f"vLLM {version} on {accelerator.name() or 'the CPU'}; {MODEL_WORDS}"


def python() -> Path:
    """Return the interpreter that has vLLM. Raise BenchError where there is none."""
    given = Path(os.environ.get("VLLM_PYTHON") or ".venv-vllm/bin/python")
    # Not resolved: the environment's python is a link, and its own place says where its packages
    # are.
    path = given if given.is_absolute() else ROOT / given
    if not path.exists():
        raise BenchError(f"{path} is not there: `make bench-engine` builds it, see docs/engine.md")
    return path


@contextmanager
def model_folder() -> Iterator[Path]:
    """Give a folder with the model around the demo tokenizer, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="bench-vllm-") as folder:
        yield write_model(Path(folder) / MODEL, MODEL_FOLDER)


@contextmanager
def vllm_server(*flags: str) -> Iterator[Server]:
    """Give a healthy server: the one that is lent, or one that ends with this. flags: more of
    vLLM's, or other values."""
    if not flags and (server := _lent()) is not None:
        yield server
        return
    (port,) = free_ports(1)
    with model_folder() as folder:
        argv = [
            "env", "-u", "PYTHONPATH", *(f"{name}={value}" for name, value in ENVIRONMENT.items()),
            str(python()), *SERVE, str(folder), *FLAGS, *flags, "--port", str(port),
        ]  # fmt: skip
        say(f"  vLLM starts{' with ' if flags else ''}{' '.join(flags)} (about a minute)")
        with Process("vllm", argv) as process:
            process.wait_listening(port, START_DEADLINE_S)
            while fetch(port, "/health").status != 200:
                process.wait_listening(port, START_DEADLINE_S)
                pause(0.2)
            yield _of(process.process, port, process.log)


@contextmanager
def lending() -> Iterator[None]:
    """Lend one server to all experiments that start meanwhile."""
    with vllm_server() as server:
        os.environ[_LENT] = f"{server.front.tree()[0].pid} {server.port} {server.log}"
        try:
            yield
        finally:
            del os.environ[_LENT]


def _lent() -> Server | None:
    """Return the server that is lent, its prefix cache empty; None where it is none, or ended."""
    pid, _, rest = os.environ.get(_LENT, "").partition(" ")
    port, _, log = rest.partition(" ")
    if not pid or fetch(int(port), "/reset_prefix_cache", b"", deadline_s=60.0).status != 200:
        return None
    return _of(psutil.Process(int(pid)), int(port), Path(log))


def _of(process: psutil.Process, port: int, log: Path) -> Server:
    tree = [process, *process.children(recursive=True)]
    engine = [one for one in tree if "".join(one.cmdline()).startswith(_ENGINE_TITLES)]
    front = [one for one in tree if one not in engine]
    return Server(port, Part(front), Part(engine), log)

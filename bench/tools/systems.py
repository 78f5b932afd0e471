"""The proxies that are compared, as commands on a core: the gateway, plain aiohttp, a bare pipe and
the routers of others, where they are installed."""

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.tools import scrape
from bench.tools.build import compiled
from bench.tools.client import fetch
from bench.tools.demo_model import MODEL, MODEL_FOLDER
from bench.tools.paths import ROOT
from bench.tools.processes import BenchError, Process, free_ports, module, pause, python_path, say

# The routers of others, and flags that each needs: SGLang's writes 905 bytes of log for each
# request otherwise, which no other proxy here does.
ROUTERS: dict[str, tuple[str, ...]] = {
    "sglang_router": ("--log-level", "warn"),
    "vllm_router": (),
}
ROUTERS_PYTHON = ".venv-routers/bin/python"
# Settings of `tokens`: the usual encoder (`tokenizers`); and with it, every prompt encoded on the
# loop. To the ladder a hop to a thread costs more than any job then, and the loop may stall for as
# long as one takes, so every job is a short one.
REFERENCE: dict[str, Any] = {"fast_engines": False}
ON_LOOP: dict[str, Any] = REFERENCE | {"thread_hop_s": 1e9, "stall_budget_s": 1e9}


class Proxy(msgspec.Struct, frozen=True):
    """A running proxy. `admin_port` is None where there is none."""

    name: str
    process: Process
    port: int
    admin_port: int | None = None

    @property
    def url(self) -> str:
        """Base URL of its data port."""
        return f"http://127.0.0.1:{self.port}"


def backends(urls: Sequence[str]) -> list[str]:
    """--backend for each URL."""
    return [word for url in urls for word in ("--backend", url)]


@contextmanager
def aiohttp_proxy(urls: Sequence[str], core: int) -> Iterator[Proxy]:
    """The baseline in front of these replicas."""
    (port,) = free_ports(1)
    argv = module("bench.tools.aiohttp_proxy", "--port", str(port), *backends(urls))
    with Process("aiohttp", argv, core=core) as process:
        process.wait_listening(port)
        yield Proxy("aiohttp", process, port)


@contextmanager
def pipe(urls: Sequence[str], core: int) -> Iterator[Proxy]:
    """The floor in front of these replicas."""
    (port,) = free_ports(1)
    argv = module("bench.tools.pipe", "--port", str(port), *backends(urls))
    with Process("pipe", argv, core=core) as process:
        process.wait_listening(port)
        yield Proxy("pipe", process, port)


def routers() -> list[str]:
    """The routers of others that are installed; `make bench-routers` does it."""
    python = ROOT / ROUTERS_PYTHON
    if not python.exists():
        return []
    found = "import importlib.util as u,sys;print(*filter(u.find_spec, sys.argv[1:]))"
    argv = [str(python), "-c", found, *ROUTERS]
    asked = subprocess.run(argv, check=True, capture_output=True, text=True)
    return asked.stdout.split()


def router_command(package: str, urls: Sequence[str], port: int, metrics_port: int) -> list[str]:
    """Return the command of one of `routers`, with the policy that looks at prompts."""
    return [
        str(ROOT / ROUTERS_PYTHON), "-m", f"{package}.launch_router", "--host", "127.0.0.1",
        "--port", str(port), "--prometheus-port", str(metrics_port), "--policy", "cache_aware",
        *ROUTERS[package], "--worker-urls", *urls,
    ]  # fmt: skip


@contextmanager
def router(package: str, urls: Sequence[str], core: int) -> Iterator[Proxy]:
    """One of `routers` in front of these replicas."""
    port, metrics_port = free_ports(2)
    argv = router_command(package, urls, port, metrics_port)
    with Process(package, argv, core=core) as process:
        process.wait_listening(port, 60)
        asked = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "ready?"}]})
        for _ in range(300):
            if fetch(port, "/v1/chat/completions", asked.encode()).status == 200:
                break
            pause(0.1)
        else:
            raise BenchError(f"{package} does not answer: {process.tail()}")
        yield Proxy(package.replace("_", "-"), process, port)


@contextmanager
def gateway(
    urls: Sequence[str],
    core: int | str | None,
    *extra: str,
    name: str = "tokenlane",
    program: str = "tokenlane",
    workers: int = 1,
    plain: bool = False,
    tokenizer: Path = MODEL_FOLDER,
) -> Iterator[Proxy]:
    """The gateway, tokenization and `affinity` on, once it serves the demo model.

    The whole of it, supervisor included, runs on that core, or on several, as taskset lists them.
    extra: more of its flags. program: a
    module with the same command line. plain: as plain Python even where the compiled build can be
    made. tokenizer: the folder of the demo model's, or another's in its place.
    """
    folder = None if plain else compiled()
    say(f"{name}: {'plain' if folder is None else 'compiled'} build")
    port, admin_port = free_ports(2)
    argv = [
        "env", f"PYTHONPATH={python_path(folder)}",
        *module(program, "serve", "--port", str(port), "--admin-port", str(admin_port)),
        "--workers", str(workers),
        "--policy", "affinity", "--tokenizer", f"{MODEL}={tokenizer}",
        *backends(urls), *extra,
    ]  # fmt: skip
    with Process(name, argv, core=core, folder=folder) as process:
        process.wait_listening(port, 60)
        wait_ready(process, admin_port)
        yield Proxy(name, process, port, admin_port)


@contextmanager
def tuned(
    name: str, urls: Sequence[str], core: int | None, tokens: dict[str, Any]
) -> Iterator[Proxy]:
    """The same gateway with these settings of `tokens` over the defaults."""
    with tempfile.NamedTemporaryFile(prefix="bench-tuned-", suffix=".yaml") as config:
        config.write(msgspec.json.encode({"tokens": tokens}))  # JSON is YAML
        config.flush()
        log_name = name.replace(",", "").replace(" ", "-")
        with gateway(urls, core, "--config", config.name, name=log_name) as proxy:
            yield proxy


def wait_ready(process: Process, admin_port: int, tries: int = 100) -> None:
    """Returns once /readyz says so."""
    for _ in range(tries):
        if fetch(admin_port, "/readyz").status == 200:
            return
        pause(0.1)
    raise BenchError(f"{process.name} did not become ready: {process.tail()}")


def wait_known(admin_port: int) -> None:
    """Returns once the gateway has seen all replicas and read their block size."""
    for _ in range(100):
        known = msgspec.json.decode(fetch(admin_port, "/replicas").body or b"{}")
        if all(one["up"] and one["block_tokens"] for one in known.get("replicas", [{"up": 0}])):
            return
        pause(0.1)
    raise BenchError("the gateway did not get to know the simulated replicas")


def wait_proven(admin_port: int, limit_s: float = 60.0) -> None:
    """Return once all replicas have proven that they make the gateway's ids of chats. Raise
    BenchError if they do not."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        proofs = [
            value
            for (name, labels), value in scrape.samples(admin_port).items()
            if name == "tokenlane_id_proof" and dict(labels)["kind"] == "chat"
        ]
        if proofs and min(proofs) == 1:
            return
        pause(0.2)
    raise BenchError(f"the replicas have not proven their ids of chats within {limit_s:g} s")

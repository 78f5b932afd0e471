"""A scene in which a gateway meets everything that dashboards show, with the load counted.

Two workers in front of two simulated replicas, a third whose chat template differs, a fourth
that gets copies of their requests, and a fifth that is dead; another gateway shares its load with
this one through a store. The load: prompts seen before and new
ones, conversations, streams, ids, prompts that cannot be read, another name of the model, paths,
models and keys that do not exist; now and then a replica is busy for a moment or dies in the
middle of an answer.

Invariants:
- Every request sent is counted, by path and by the status that came back; one without an answer
  is counted as `CUT`. What was counted is what the gateway's counters must say.
- The load is closed-loop and paced: the scene shows metrics, it measures nothing.
"""

import contextlib
import hashlib
import http.client
import itertools
import json
import os
import random
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.loads import workload
from bench.loads.workload import CHAT
from bench.tools.client import fetch
from bench.tools.demo_model import MODEL_FOLDER
from bench.tools.processes import BenchError
from bench.tools.store_server import StoreServer
from bench.tools.systems import Proxy, gateway
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess

CUT = 0
_OTHER_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
)
_SIMULATED = (
    *("--token-interval-s", "0.003", "--prefill-tokens-per-s", "400000"),
    *("--cache-blocks", "2000", "--running-limit", "8"),
)
# Two tenants, by their keys. Places for fewer than ask, and hardly a queue.
_KEYS = {"acme": "acme-key", "labs": "labs-key"}
_SETTINGS = {
    "auth": {
        "keys": [
            {"digest": hashlib.sha256(key.encode()).hexdigest(), "tenant": tenant}
            for tenant, key in _KEYS.items()
        ]
    },
    "admission": {"concurrency_limit_count": 2, "queue_limit_count": 2, "queue_deadline_s": 0.02},
    "prices": {"demo": {"input_per_million": 0.3, "output_per_million": 1.2}},
    "models": {
        "aliases": {"gpt-4o": "demo"},
        "shadows": {"demo": {"to": "twin", "ratio": 0.3}},
        "shadow_limit_count": 2,
    },
    "control": {"probe_interval_s": 0.5},
    "tokens": {"check_ratio": 0.01},
    "upstream": {"connect_deadline_s": 1.0},
}


class Load:
    """Clients that ask until told to stop. sent: requests by (path, status)."""

    def __init__(self, proxy: Proxy, replica_port: int, clients: int = 4) -> None:
        self._proxy = proxy
        self._replica_port = replica_port
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.clients = clients
        self._threads: list[threading.Thread] = []
        self.sent: Counter[tuple[str, int]] = Counter()

    def start(self) -> None:
        """Begins, or begins again."""
        self._stop.clear()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(index,)) for index in range(self.clients)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Returns once every request under way is over."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @contextlib.contextmanager
    def running(self, seconds: float = 0.0) -> Iterator[None]:
        """The load, for as long as the context and at least so many seconds."""
        self.start()
        try:
            ends_s = time.monotonic() + seconds
            yield
            time.sleep(max(0.0, ends_s - time.monotonic()))
        finally:
            self.stop()

    def _ask_on(self, index: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._proxy.port, timeout=30)
        chooser = random.Random(index)
        try:
            while not self._stop.is_set():
                number = next(self._numbers)
                if number % 40 == 7:
                    _disturb(self._replica_port, number)
                path, body = _request(chooser, number)
                key = "unknown" if number % 50 == 11 else list(_KEYS.values())[index % 2]
                status = _ask(connection, path, body, key)
                with self._lock:
                    self.sent[path, status] += 1
                self._stop.wait(0.01)
        finally:
            connection.close()


def _request(chooser: random.Random, number: int) -> tuple[str, bytes]:
    """A path and a body (none: GET), drawn from what the scene knows."""
    kind = chooser.choices(
        "known stream talk new ids image model alias path embed health".split(),
        (30, 25, 12, 12, 6, 3, 2, 3, 2, 4, 4),
    )[0]
    match kind:
        case "known":
            return CHAT, workload.sized(600, chooser.randrange(20))
        case "stream":
            return CHAT, workload.sized(900, chooser.randrange(40), stream=True)
        case "talk":
            return CHAT, workload.chat(_conversation(chooser.randrange(4), chooser.randrange(1, 8)))
        case "new":
            text = f"{number} {workload.text(chooser.randrange(4_000, 60_000), number)}"
            return CHAT, workload.chat([("user", text)], stream=True)
        case "ids":
            ids = [chooser.randrange(1000) for _ in range(200)]
            return "/v1/completions", _json(model="demo", prompt=ids, max_tokens=4)
        case "image":
            part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
            messages = [{"role": "user", "content": [part]}]
            return CHAT, _json(model="demo", messages=messages)
        case "model":
            return CHAT, _json(model="none-such", messages=[{"role": "user", "content": "?"}])
        case "alias":
            return CHAT, _json(model="gpt-4o", messages=[{"role": "user", "content": "Hello"}])
        case "path":
            return "/v1/none-such", _json(model="demo")
        case "embed":
            return "/v1/embeddings", _json(model="demo", input="some text")
        case _:
            return "/health", b""


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def _conversation(seed: int, turns: int) -> list[tuple[str, str]]:
    """The first turns of a long one: each contains the one before."""
    messages = [("system", workload.text(4_000, seed))]
    for turn in range(turns):
        messages.append(("user", workload.text(300, seed * 100 + turn)))
        messages.append(("assistant", workload.text(300, seed * 100 + turn + 50)))
    return [*messages, ("user", "and then?")]


def _ask(connection: http.client.HTTPConnection, path: str, body: bytes, key: str) -> int:
    """The status of an answer, also of one that broke off (CUT: none came)."""
    status = CUT
    try:
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        connection.request("POST" if body else "GET", path, body or None, headers)
        answer = connection.getresponse()
        status = answer.status
        answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()
    return status


def _disturb(port: int, number: int) -> None:
    """Something short happens to a replica."""
    faults = (
        {"kind": "status", "status": 503, "count": 3},
        {"kind": "die-mid-stream", "count": 1, "after_chunks": 2},
        {"kind": "close", "count": 1},
    )
    fetch(port, "/sim/fault", json.dumps(faults[number // 40 % len(faults)]).encode())


def kill_worker(proxy: Proxy, index: int, deadline_s: float = 20.0) -> None:
    """kill -9 of a worker; returns once its successor is ready."""
    before = _workers(proxy)
    os.kill(before[index]["pid"], signal.SIGKILL)
    until_s = time.monotonic() + deadline_s
    while time.monotonic() < until_s:
        worker = _workers(proxy)[index]
        if worker["state"] == "ready" and worker["pid"] != before[index]["pid"]:
            return
        time.sleep(0.05)
    raise BenchError("the killed worker was not started again")


def _workers(proxy: Proxy) -> list[dict[str, Any]]:
    assert proxy.admin_port is not None
    status = json.loads(fetch(proxy.admin_port, "/status.json").body)
    workers: list[dict[str, Any]] = status["workers"]
    return workers


@contextlib.contextmanager
def scene(folder: Path) -> Iterator[tuple[Proxy, Load]]:
    """The gateway, ready, and its load, not yet running. folder: for a few files."""
    other = folder / "other-template"
    shutil.copytree(MODEL_FOLDER, other)
    _change_template(other)
    config = folder / "scene.json"
    config.write_text(json.dumps(_SETTINGS))  # JSON is YAML
    with contextlib.ExitStack() as stack:
        # Bound and not listening: whoever connects is refused, and nobody else gets the port.
        dead = stack.enter_context(socket.socket())
        dead.bind(("127.0.0.1", 0))
        twins_port = free_ports(2)
        twins = stack.enter_context(
            FleetProcess(2, twins_port, (*_SIMULATED, "--kv-events", "maps"))
        )
        # Not asked for before: the twins' publishers may have taken a neighbour's port.
        odd = stack.enter_context(
            FleetProcess(1, free_ports(1), ("--tokenizer", f"demo={other}", *_SIMULATED))
        )
        shadow = stack.enter_context(
            FleetProcess(1, free_ports(1), ("--tokenizer", f"twin={MODEL_FOLDER}", *_SIMULATED))
        )
        urls = [*twins.urls, *odd.urls, *shadow.urls, f"http://127.0.0.1:{dead.getsockname()[1]}"]
        store = stack.enter_context(StoreServer())
        shared = ("--fleet-store", store.url)
        flags = ("--workers", "2", "--config", str(config), *shared)
        stack.enter_context(gateway(urls, None, *shared, name="another", plain=True))
        proxy = stack.enter_context(gateway(urls, None, *flags, plain=True))
        yield proxy, Load(proxy, twins_port)


def _change_template(folder: Path) -> None:
    """Makes a tokenizer folder whose chats have other tokens."""
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["chat_template"] = _OTHER_TEMPLATE
    path.write_text(json.dumps(config), encoding="utf-8")

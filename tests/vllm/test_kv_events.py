"""Two real vLLM servers that publish KV events: is what the gateway believes what they hold?"""

import http.client
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.conftest import Report
from tests.vllm.processes import Server, vllm_server
from tests.vllm.versions import EARLIER
from tokenlane.config.settings import RoutingSettings
from tokenlane.replay import access_traces
from tokenlane.replay.run import Figures, FleetShape, replay
from tokenlane.runtime.ports import free_ports

BLOCK_TOKENS = 32
CACHE_BLOCKS = 400
REQUESTS = 2000
SAMPLES = 200
CLIENTS = 6
RANKS = 2
PROBE_INTERVAL_S = 0.25
# From an event at the gateway to an index without it; the rest is the engine's next step.
EMPTY_WITHIN_S = 1.0


def events_flags(**more: Any) -> tuple[str, ...]:
    """Flags of a server that publishes, with a cache small enough to evict."""
    first = free_ports(2 * RANKS)  # each rank's own
    config = {
        "enable_kv_cache_events": True,
        "endpoint": f"tcp://*:{first}",
        "replay_endpoint": f"tcp://*:{first + RANKS}",
        **more,
    }
    return (
        *("--kv-events-config", json.dumps(config)),
        *("--num-gpu-blocks-override", str(CACHE_BLOCKS)),
        *("--max-model-len", "4096"),
    )


@pytest.fixture(scope="module")
def publishers(
    vllm_python: Path, model_folder: Path, report: Report
) -> Iterator[tuple[Server, Server]]:
    pair = tuple(
        vllm_server(f"vllm-events-{number}", vllm_python, model_folder, *events_flags())
        for number in range(2)
    )
    try:
        for server in pair:
            server.wait()
        ready_s = max(server.ready_after_s for server in pair)
        report.add("two servers that publish KV events healthy", f"{ready_s:.0f} s")
        yield pair[0], pair[1]
    finally:
        for server in pair:
            server.stop()


def _source(of: Server) -> dict[str, Any] | None:
    """Where a server publishes, from its flags, as the gateway's settings name it; None where it
    does not."""
    flags = list(map(str, of.process.args)) if isinstance(of.process.args, list) else []
    if "--kv-events-config" not in flags:
        return None
    config = json.loads(flags[flags.index("--kv-events-config") + 1])
    ranks = flags[flags.index("--data-parallel-size") + 1] if "--data-parallel-size" in flags else 1
    return {
        "endpoint": config["endpoint"].replace("*", "127.0.0.1"),
        "replay_endpoint": config["replay_endpoint"].replace("*", "127.0.0.1"),
        "data_parallel_ranks": int(ranks),
    }


class Gateway(Server):
    """A gateway, and what its admin port says of caches."""

    def __init__(
        self, name: str, folders: dict[str, Path], *backends: Server, **environment: str
    ) -> None:
        """folders: of tokenizers, by model."""
        port, self.admin_port = free_ports(1), free_ports(1)
        command = [sys.executable, "-m", "tokenlane", "serve", "--port", str(port)]
        command += ["--admin-port", str(self.admin_port)]
        for model, folder in folders.items():
            command += ["--tokenizer", f"{model}={folder}"]
        for backend in backends:
            command += ["--backend", backend.url]
        if EARLIER:
            # It does not say where it publishes.
            environment["TOKENLANE_KV_EVENTS_SOURCES"] = json.dumps(
                {one.url: source for one in backends if (source := _source(one))}
            )
        super().__init__(name, command, port, **environment)

    def page(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=10)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def sample(self, name: str, of: Server, **labels: str) -> float:
        """The sum of a family's samples for one replica."""
        total = 0.0
        wanted = {"replica": of.url.removeprefix("http://"), **labels}
        for line in self.page().splitlines():
            if line.startswith(name + "{") and all(
                f'{label}="{value}"' in line for label, value in wanted.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def blocks(self, of: Server) -> float:
        return self.sample("tokenlane_kv_blocks", of, medium="gpu")

    def complete(self, of: Server) -> bool:
        return self.sample("tokenlane_kv_event_standing_info", of, standing="complete") > 0


@pytest.fixture(scope="module")
def access_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `front`, which can be replayed."""
    return tmp_path_factory.mktemp("log") / "access.jsonl"


@pytest.fixture(scope="module")
def front(
    publishers: tuple[Server, Server], model_folder: Path, access_log: Path
) -> Iterator[Gateway]:
    gateway = Gateway(
        "gateway-events",
        {"tiny": model_folder},
        *publishers,
        TOKENLANE_CONTROL_PROBE_INTERVAL_S=str(PROBE_INTERVAL_S),
        TOKENLANE_LOG_ACCESS=str(access_log),
        TOKENLANE_LOG_FORMAT="json",
        TOKENLANE_LOG_SAMPLE_RATIO="1.0",
        TOKENLANE_LOG_PREFIX_BLOCK_TOKENS=str(BLOCK_TOKENS),
    )
    try:
        gateway.wait()
        wait_for(lambda: all(map(gateway.complete, publishers)), 10.0)
        yield gateway
    finally:
        gateway.stop()


def wait_for(condition: Callable[[], bool], within_s: float) -> float:
    """Seconds until it held; fails if it did not in time."""
    started_s = time.monotonic()
    while not condition():
        assert time.monotonic() - started_s < within_s
        time.sleep(0.01)
    return time.monotonic() - started_s


def settle() -> None:
    """Until the events of the last answer should be here: later where many want the processor."""
    time.sleep(0.05 * max(1.0, os.getloadavg()[0]))


def prompts(count: int) -> list[dict[str, Any]]:
    """Conversations as ids: turns that continue earlier ones, popular ones more often; a quarter
    with a salt."""
    rng = random.Random(11)
    talks = [[rng.randrange(100, 1000) for _ in range(rng.randrange(40, 600))] for _ in range(120)]
    made = []
    for _ in range(count):
        number = min(int(rng.paretovariate(0.7)), len(talks)) - 1
        talk = talks[number]
        if len(talk) > 1500:
            del talk[200:]
        talk += [rng.randrange(100, 1000) for _ in range(rng.randrange(70))]
        body = {"model": "tiny", "prompt": list(talk), "max_tokens": 2, "temperature": 0}
        made.append(body | ({"cache_salt": f"s{number % 3}"} if number % 4 == 0 else {}))
    return made


def send(server: Server, body: dict[str, Any]) -> tuple[int, int]:
    """Predicted and actual cached tokens."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        head = {"content-type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body).encode(), head)
        answer = connection.getresponse()
        read = answer.read()
        assert answer.status == 200, read
        usage = json.loads(read)["usage"]
        predicted = int(answer.getheader("x-tokenlane-cached-tokens") or 0)
        return predicted, usage["prompt_tokens_details"]["cached_tokens"]
    finally:
        connection.close()


def test_the_index_is_what_the_caches_hold(
    front: Gateway, publishers: tuple[Server, Server], report: Report
) -> None:
    bodies = prompts(REQUESTS)
    began_s = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(lambda body: send(front, body), bodies))
    took_s = time.monotonic() - began_s
    for server in publishers:
        assert front.complete(server)
        assert front.sample("tokenlane_kv_events_total", server, type="BlockRemoved") > 500
        assert front.sample("tokenlane_kv_events_total", server, type="unread") == 0
        assert 0 < front.blocks(server) <= CACHE_BLOCKS
    rng = random.Random(12)
    # Recent ones, of which much is there still, and any: both answers are to be right.
    asked = rng.choices(bodies[-300:], k=SAMPLES // 2) + rng.choices(bodies, k=SAMPLES // 2)
    equal, tokens, wrong = 0, 0, []
    for body in asked:
        settle()
        predicted, actual = send(front, body)
        equal += predicted == actual
        tokens += actual
        if predicted != actual:
            wrong.append((predicted, actual))
    lag_s = max(front.sample("tokenlane_kv_event_lag_seconds", server) for server in publishers)
    removed = sum(
        front.sample("tokenlane_kv_events_total", server, type="BlockRemoved")
        for server in publishers
    )
    report.add(
        "requests before the comparison, blocks' removals",
        f"{REQUESTS} in {took_s:.0f} s, {removed:.0f}",
    )
    report.add(
        "predicted cached tokens equal to the server's, sampled",
        f"{equal} of {SAMPLES} ({tokens} tokens)",
    )
    report.add("last event's lag", f"{1000 * lag_s:.1f} ms")
    assert tokens > 10_000
    assert not wrong


def test_the_access_log_replays_as_it_was(front: Gateway, access_log: Path, report: Report) -> None:
    """The simulated fleet finds in its caches what the servers found in theirs."""
    wait_for(lambda: len(access_log.read_bytes().splitlines()) >= REQUESTS + SAMPLES, 10.0)
    trace = access_traces.read(access_log, "tiny")
    assert trace is not None
    assert trace.seen_hit is not None
    # A block of a server's is kept for padding.
    served = replay(trace, FleetShape(2, CACHE_BLOCKS - 1), RoutingSettings())
    hit = Figures.of(served, 2).hit
    report.add(
        "tokens from caches, as the servers said / in the replay of the access log",
        f"{trace.seen_hit:.2%} / {hit:.2%} ({len(served)} requests)",
    )
    assert abs(hit - trace.seen_hit) < 0.05


def test_a_gateway_that_comes_late_knows_as_much(
    front: Gateway, publishers: tuple[Server, Server], model_folder: Path, report: Report
) -> None:
    late = Gateway("gateway-late", {"tiny": model_folder}, *publishers)
    try:
        late.wait()
        took_s = wait_for(
            lambda: all(late.blocks(one) == front.blocks(one) > 0 for one in publishers), 20.0
        )
        report.add("a second gateway knows the same blocks after", f"{took_s:.2f} s")
        assert all(late.complete(server) for server in publishers)
    finally:
        late.stop()


def test_a_cleared_cache_is_empty_at_once(
    front: Gateway, publishers: tuple[Server, Server], report: Report
) -> None:
    one = publishers[0]
    body = {"model": "tiny", "prompt": [50] * 200, "max_tokens": 1}
    assert send(one, body)[1] in {0, 192}
    wait_for(lambda: front.blocks(one) > 0, 5.0)
    assert one.request("POST", "/reset_prefix_cache")[0] == 200
    send(one, {"model": "tiny", "prompt": [51] * 8, "max_tokens": 1})  # the next engine step
    took_s = wait_for(lambda: front.blocks(one) == 0, 5.0)
    report.add("blocks known after reset_prefix_cache and a step: none, after", f"{took_s:.3f} s")
    assert took_s < EMPTY_WITHIN_S


def engine_counts(server: Server, name: str) -> list[float]:
    """A counter of each of the two engines."""
    _, page = server.request("GET", "/metrics")
    return [
        sum(
            float(line.rsplit(" ", 1)[1])
            for line in page.decode().splitlines()
            if line.startswith(name + "{") and f'engine="{engine}"' in line
        )
        for engine in range(2)
    ]


def test_ranks_of_a_data_parallel_server_are_pinned(
    vllm_python: Path, model_folder: Path, report: Report
) -> None:
    """Eight conversations of five turns, interleaved: all turns of one are on one rank, and its
    hits are those predicted."""
    flags = (*events_flags(), "--data-parallel-size", str(RANKS))
    server = vllm_server("vllm-ranks", vllm_python, model_folder, *flags)
    front: Gateway | None = None
    try:
        server.wait()
        front = gateway = Gateway("gateway-ranks", {"tiny": model_folder}, server)
        gateway.wait()
        complete = "tokenlane_kv_event_standing_info"
        wait_for(lambda: gateway.sample(complete, server, standing="complete") == 2, 10.0)
        rng = random.Random(13)
        talks = [[rng.randrange(100, 1000) for _ in range(300)] for _ in range(8)]
        homes: list[set[int]] = [set() for _ in talks]
        predicted_tokens, right = [0.0, 0.0], 0
        before = engine_counts(server, "vllm:prefix_cache_hits_total")
        for _ in range(5):
            for number, talk in enumerate(talks):
                queried = engine_counts(server, "vllm:prefix_cache_queries_total")
                body = {"model": "tiny", "prompt": talk, "max_tokens": 1, "temperature": 0}
                predicted, actual = send(gateway, body)
                time.sleep(0.1)  # the engines' counters follow
                after = engine_counts(server, "vllm:prefix_cache_queries_total")
                engine = int(after[1] > queried[1])
                homes[number].add(engine)
                predicted_tokens[engine] += predicted
                right += predicted == actual
                talk += [rng.randrange(100, 1000) for _ in range(50)]
        hits = [
            now - then
            for now, then in zip(
                engine_counts(server, "vllm:prefix_cache_hits_total"), before, strict=True
            )
        ]
        report.add(
            "DP=2: conversations on one rank, per rank", f"{[len(one) for one in homes]}, {homes}"
        )
        report.add("DP=2: predicted and actual hits per rank, tokens", f"{predicted_tokens} {hits}")
        assert [len(one) for one in homes] == [1] * 8
        assert {engine for one in homes for engine in one} == {0, 1}
        assert right == 40
        assert hits == predicted_tokens
    finally:
        if front is not None:
            front.stop()
        server.stop()


def test_a_dead_server_holds_nothing(
    front: Gateway, publishers: tuple[Server, Server], report: Report
) -> None:
    one = publishers[1]
    wait_for(lambda: front.blocks(one) > 0, 5.0)
    os.killpg(one.process.pid, signal.SIGKILL)
    one.process.wait(10)
    took_s = wait_for(lambda: front.blocks(one) == 0, 10.0)
    report.add(
        f"blocks known of a killed server: none, after (probes every {PROBE_INTERVAL_S} s)",
        f"{took_s:.2f} s",
    )
    # No probe can have failed before it was killed.
    assert took_s < EMPTY_WITHIN_S
    assert re.search(r'tokenlane_kv_event_standing_info\{.*standing="none"', front.page())

"""Settings read anew under load: broken files, removed replicas, changed keys, by signal, request
and watch. Real processes; nobody may notice but the client whose key is gone."""

import asyncio
import contextlib
import hashlib
import json
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.control.test_supervisor import Gateway
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess

pytestmark = pytest.mark.slow

TOKEN = "an-admin-token-of-some-length"
STAYS, COMES_AND_GOES = "key-that-stays", "key-that-comes-and-goes"
CLIENTS = 6
SHORT_RELOADS, LONG_RELOADS = 8, 200
BROKEN = (
    "backends: [\n",
    "backends: []\n",
    "servr: {port: 1}\n",
    "routing: {policy: nonsense}\n",
    "log: {access: /nowhere/at/all/access.jsonl}\n",  # only a worker can tell
    "auth: {keys_file: /nowhere/keys.yaml}\n",
    "\x00",
)


def digest(key: str, tenant: str) -> dict[str, str]:
    return {"digest": hashlib.sha256(key.encode()).hexdigest(), "tenant": tenant}


class Scene:
    """A gateway of two workers on its files, its replicas, and what its clients got."""

    def __init__(self, folder: Path, urls: tuple[str, ...]) -> None:
        self.file, self.keys_file, self.token_file = (
            folder / name for name in ("gateway.yaml", "keys.yaml", "token")
        )
        self.folder, self.urls = folder, list(urls)
        self.token_file.write_text(TOKEN, encoding="ascii")
        self.write_keys(STAYS, COMES_AND_GOES)
        self.write()
        self.answers = 0
        self.failures: list[str] = []
        self.problems = 0

    def write_keys(self, *keys: str) -> None:
        made = self.folder / "keys.new"
        made.write_text(yaml.safe_dump([digest(key, "t") for key in keys]), encoding="utf-8")
        made.replace(self.keys_file)

    def write(self, more: str = "", **settings: Any) -> None:
        """The whole file, in place; `more` as text behind it."""
        whole = {
            "backends": self.urls,
            "server": {"workers": 2},
            "admin": {"token_file": str(self.token_file)},
            "auth": {"keys_file": str(self.keys_file), "tenants": {"t": {}}},
            "tokens": {"discover": False},
            "log": {"access": "off"},
            **settings,
        }
        self.file.write_text(more or yaml.safe_dump(whole), encoding="utf-8")

    def start(self) -> Gateway:
        return Gateway("serve", "--config", str(self.file))


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[Scene, Gateway]]:
    with FleetProcess(3, free_ports(3), ("--token-interval-s", "0.01")) as fleet:
        scene = Scene(folder, fleet.urls)
        with scene.start() as gateway:
            yield scene, gateway
            assert gateway.stop() == 0


async def client(scene: Scene, port: int, *, stream: bool) -> None:
    """Asks until cancelled; whatever is not a whole answer is a failure."""
    body = {"model": "demo", "prompt": "Say something", "stream": stream}
    body["max_tokens"] = 60 if stream else 3
    url, headers = f"http://127.0.0.1:{port}/v1/completions", {"authorization": f"Bearer {STAYS}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        while True:
            try:
                async with session.post(url, json=body) as response:
                    text = await response.read()
            except aiohttp.ClientError as error:
                scene.failures.append(repr(error))
                continue
            scene.answers += 1
            if response.status != 200 or (stream and b"data: [DONE]" not in text):
                scene.failures.append(f"{response.status}: {text[-200:]!r}")


@contextlib.asynccontextmanager
async def load(scene: Scene, port: int) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    tasks = [
        loop.create_task(client(scene, port, stream=number % 2 == 0)) for number in range(CLIENTS)
    ]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def status_of(port: int, key: str) -> int:
    """Of a request on a connection of its own, so that each worker gets some."""
    headers = {"authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        session.get(f"http://127.0.0.1:{port}/v1/models", headers=headers) as response,
    ):
        return response.status


async def report(gateway: Gateway) -> dict[str, Any]:
    """`config` of /status.json."""
    text = await asyncio.to_thread(gateway.ask, "/status.json", admin=True)
    config: dict[str, Any] = json.loads(text[1])["config"]
    return config


async def reloaded(gateway: Gateway, before: int) -> dict[str, Any]:
    """The report, once there was one more than `before`."""
    async with asyncio.timeout(30):
        while True:
            config = await report(gateway)
            if sum(config["reloads"].values()) > before:
                return config
            await asyncio.sleep(0.01)


async def trigger(gateway: Gateway, how: str) -> None:
    if how == "signal":
        gateway.process.send_signal(signal.SIGHUP)
    elif how == "request":
        url = f"http://127.0.0.1:{gateway.admin_port}/reload"
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession() as session:
            async with session.post(url, headers=headers) as response:
                assert response.status in (200, 422)
                await response.read()


def change(scene: Scene, number: int, draw: random.Random) -> bool:
    """Writes the next file; whether it is good."""
    kind = number % 4
    if kind == 0:
        scene.write(BROKEN[number // 4 % len(BROKEN)])
        return False
    if kind == 1:  # a replica less, and back
        first, *rest = scene.urls
        scene.write(backends=rest if number % 8 == 1 else [first, *rest])
        return True
    scene.write(
        routing={"policy": draw.choice(["affinity", "random", "p2c", "least-work"])},
        admission={"concurrency_limit_count": draw.randint(50, 99)},
        requests={"output_limit_tokens": draw.randint(100, 999)},
        upstream={"retry_limit_count": draw.randint(1, 3)},
        models={"aliases": {f"name-{number}": "demo"}},
        log={"access": str(scene.folder / f"access-{number % 3}.jsonl"), "sample_ratio": 1.0},
    )
    return True


async def revoke(scene: Scene, gateway: Gateway) -> float:
    """Takes a key away by its file alone; seconds until the last request that it was good for."""
    assert await status_of(gateway.port, COMES_AND_GOES) == 200
    scene.write_keys(STAYS)
    began_s = last_good_s = time.monotonic()
    refused = 0
    while refused < 40:  # on connections of their own: both workers get some
        asked_s = time.monotonic()
        if await status_of(gateway.port, COMES_AND_GOES) == 200:
            last_good_s, refused = asked_s, 0
        else:
            refused += 1
        assert time.monotonic() - began_s < 20
    scene.write_keys(STAYS, COMES_AND_GOES)
    while await status_of(gateway.port, COMES_AND_GOES) != 200:
        pass
    return last_good_s - began_s


@pytest.mark.row("O8")
@pytest.mark.long
async def test_reloads_under_load_fail_no_request(
    tmp_path: Path, long: bool, figure: Callable[[str], None]
) -> None:
    draw, done, refused, revoked_s = random.Random(8), 0, 0, []
    with serving(tmp_path) as (scene, gateway):
        pids = {row["pid"] for row in gateway.status()["workers"]}
        async with load(scene, gateway.port):
            for number in range(LONG_RELOADS if long else SHORT_RELOADS):
                good = change(scene, number, draw)
                how = ("signal", "request", "watch")[number // 2 % 3]
                await trigger(gateway, how)
                config = await reloaded(gateway, done)
                done += 1
                assert (config["last"]["outcome"] != "refused") is good, config["last"]
                refused += not good
                if long:
                    await asyncio.sleep(draw.uniform(0.0, 0.2))
                if number % 8 == 7:
                    revoked_s.append(await revoke(scene, gateway))
                    done += 2
                    assert sum((await reloaded(gateway, done - 1))["reloads"].values()) == done
            scene.write()
            await reloaded(gateway, done)
        assert scene.failures == []
        assert {row["pid"] for row in gateway.status()["workers"]} == pids  # nobody was restarted
        rows = json.loads(gateway.ask("/replicas", admin=True)[1])["replicas"]
        assert sorted(row["url"] for row in rows if not row["draining"]) == sorted(scene.urls)
        # A busy machine may be late; the long form is run on a quiet one.
        assert max(revoked_s) < (1.0 if long else 10.0)
        figure(
            f"{done} reloads, {refused} of broken files: {scene.answers:,} answers, 0 failed;"
            f" a revoked key refused after {max(revoked_s):.2f} s at most ({len(revoked_s)} times)"
        )

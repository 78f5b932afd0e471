"""The corpus through nginx and HAProxy as Debian ships them, in plain configurations.

    python -m tests.conformance.differential > docs/conformance.md

Invariants:
- What is compared is what counts: how many requests a replica got, which, and how many of the
  client's were answered with success. Other statuses than ours for a refusal are no difference.
- Lanes run side by side, each with a port and an upstream of its own, so that every request that
  an upstream sees belongs to one case.
"""

import asyncio
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import h11
import uvloop

from bench.tools.processes import free_ports
from tests.conformance import published
from tests.conformance.corpus import REASONS, Case, cases
from tests.conformance.observe import Recorder
from tests.paths import ROOT
from tests.raw import Client, Peer, Upstream

PROXIES = ("nginx", "haproxy")
PAGE = ROOT / "docs" / "conformance.md"
_LANES = 24
_QUIET_S = 0.3
_GRACE_S = 0.02
_STATUS = re.compile(rb"HTTP/1\.[01] ([2-5]\d\d) ")

_NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; client_header_timeout 1s; client_body_timeout 1s; client_max_body_size 32m;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  {servers}
}}
"""
_NGINX_SERVER = """
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://127.0.0.1:{upstream}; proxy_http_version 1.1; proxy_set_header Connection "";
  }} }}
"""
_HAPROXY = """
defaults
  mode http
  timeout connect 1s
  timeout client 1s
  timeout server 2s
  timeout http-request 1s
{servers}
"""
_HAPROXY_SERVER = """
listen lane{port}
  bind 127.0.0.1:{port}
  server one 127.0.0.1:{upstream}
"""


class Lenient(Recorder):
    """Notes requests that h11 cannot read as such, instead of failing."""

    async def __call__(self, peer: Peer) -> None:
        try:
            await super().__call__(peer)
        except (h11.ProtocolError, ConnectionError):
            peer.close()


@dataclass(frozen=True)
class Outcome:
    """served: answers with success. seen: (target, body) of the requests upstream."""

    served: int
    seen: tuple[tuple[bytes, bytes], ...]

    def __str__(self) -> str:
        return f"{self.served} of {len(self.seen)}" if self.seen or self.served else "refused"


def ours(case: Case) -> Outcome:
    """What the corpus says of the gateway: all of it is tested."""
    own = case.statuses.count(200) - len(case.asked)  # answered here, as a list of models
    return Outcome(len(case.asked) + max(own, 0), case.asked)


def missing() -> list[str]:
    """Programs that are not here."""
    return [name for name in PROXIES if shutil.which(name) is None]


def version(name: str) -> str:
    """As it says itself."""
    said = subprocess.run([name, "-v"], capture_output=True, text=True, check=True)
    number = re.search(r"\d+\.\d+\.\d+", said.stdout + said.stderr)
    return number[0] if number else "of unknown version"


@asynccontextmanager
async def running(name: str, upstreams: list[int]) -> AsyncIterator[list[int]]:
    """The proxy before each of these ports; its own ports."""
    ports = free_ports(len(upstreams))
    template = _NGINX_SERVER if name == "nginx" else _HAPROXY_SERVER
    pairs = zip(ports, upstreams, strict=True)
    servers = "".join(template.format(port=port, upstream=upstream) for port, upstream in pairs)
    with tempfile.TemporaryDirectory() as folder:
        whole = _NGINX if name == "nginx" else _HAPROXY
        file = _written(Path(folder, "conf"), whole.format(folder=folder, servers=servers))
        options = ["-p", folder, "-c"] if name == "nginx" else ["-db", "-f"]
        process = await asyncio.create_subprocess_exec(
            name, *options, str(file), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            await _listening(ports[-1])
            yield ports
        finally:
            process.terminate()
            await process.wait()


def _written(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


async def _listening(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                (await Client.connect(port)).close()
                return
            await asyncio.sleep(0.02)


async def _outcome(case: Case, port: int, recorder: Recorder) -> Outcome:
    recorder.requests.clear()
    client = await Client.connect(port)
    expected = ours(case)
    data = b""
    loop = asyncio.get_running_loop()
    try:
        with contextlib.suppress(ConnectionError):
            await client.send(case.data)
        heard_s = loop.time()
        with contextlib.suppress(TimeoutError, ConnectionError):
            while True:
                like_ours = len(_STATUS.findall(data)) == len(case.statuses) and len(
                    recorder.requests
                ) == len(expected.seen)
                wait_s = _GRACE_S if like_ours else heard_s + _QUIET_S - loop.time()
                async with asyncio.timeout(wait_s):
                    piece = await client.more()
                if not piece:
                    break
                heard_s = loop.time()
                data += piece
    finally:
        client.close()
    served = [status for status in _STATUS.findall(data) if status[:1] in b"23"]
    return Outcome(len(served), tuple((one.target, one.body) for one in recorder.requests))


async def outcomes(name: str, among: Iterable[Case]) -> dict[str, Outcome]:
    """Every case through a proxy, by its id."""
    found: dict[str, Outcome] = {}
    left = iter(among)
    async with contextlib.AsyncExitStack() as stack:
        recorders = [Lenient() for _ in range(_LANES)]
        upstreams = [await stack.enter_async_context(Upstream(one)) for one in recorders]
        ports = await stack.enter_async_context(running(name, [one.port for one in upstreams]))

        async def lane(port: int, recorder: Recorder) -> None:
            for case in left:
                found[case.id] = await _outcome(case, port, recorder)

        async with asyncio.TaskGroup() as group:
            for port, recorder in zip(ports, recorders, strict=True):
                group.create_task(lane(port, recorder))
    return found


def page(found: dict[str, dict[str, Outcome]]) -> str:
    """docs/conformance.md."""
    versions = ", ".join(f"{name} {version(name)}" for name in PROXIES)
    lines = [
        "# HTTP conformance",
        "",
        f"`tests/conformance` holds {len(cases())} raw inputs with all that a client and a replica",
        "may see of each; every one is sent at once and byte by byte. The same inputs go through",
        f"{versions}, in plain configurations. Below are those where one of them serves",
        "requests that the gateway refuses, or the other way round. The gateway is stricter on",
        "purpose: of two readings of one input, none is safe. This page is generated:",
        "`python -m tests.conformance.differential > docs/conformance.md`.",
        "",
        "`1 of 2`: one answer with success, two requests upstream.",
        "",
        "| case | tokenlane | nginx | HAProxy | why |",
        "|---|---|---|---|---|",
    ]
    used = set()
    for case in cases():
        theirs = [found[name][case.id] for name in PROXIES]
        if all(one == ours(case) for one in theirs):
            continue
        used.add(case.differs)
        shown = [_shown(ours(case), one) for one in (ours(case), *theirs)]
        lines.append(f"| `{case.id}` | {' | '.join(shown)} | {case.differs} |")
    lines += ["", "| why | |", "|---|---|"]
    lines += [f"| {key} | {text} |" for key, text in REASONS.items() if key in used]
    lines += [
        "",
        "## Published lists",
        "",
        "Case by case, `tests/conformance/published.toml` says which of ours try the same, in",
        "bytes of our own. Refused: the last request of each of those gets a 4xx or 5xx, and no",
        "replica sees it. Canonical: it has one reading, and a replica gets what we built of it.",
        "",
        *published.table(),
    ]
    return "\n".join(lines) + "\n"


def _shown(own: Outcome, one: Outcome) -> str:
    same_count = (own.served, len(own.seen)) == (one.served, len(one.seen))
    return str(one) if own == one or not same_count else f"{one}, passed as it came"


async def main() -> None:
    """Writes the page."""
    found = {name: await outcomes(name, cases()) for name in PROXIES}
    sys.stdout.write(page(found))


if __name__ == "__main__":
    uvloop.run(main())

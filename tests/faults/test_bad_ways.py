"""Bad ways to the gateway and from it to its replicas: late, in pieces, with loss and out of order.
No byte is wrong, and nothing hangs."""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.talks import hold, received, replica, talks
from tests.faults.ways import Way
from tests.paths import ROOT
from tests.raw import CHAT, STREAM_HEAD, TOKEN, Answer, Client, Peer, Upstream, chat, chunk, post
from tests.support import gateway
from tokenlane.config.settings import ServerSettings, Settings, UpstreamSettings

SEED = 7
LARGE_BYTES = 6_000


def no_namespace(unshare: list[str]) -> str | None:
    """Why there can be no network of one's own here; None if there can."""
    for tool in ("unshare", "ip"):
        if shutil.which(tool) is None:
            return f"no {tool}"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "no /dev/net/tun"
    tried = subprocess.run(
        [*unshare, "ip", "tuntap", "add", "dev", "tried", "mode", "tun"],
        capture_output=True,
        text=True,
        check=False,
    )
    return (tried.stderr.strip() or "not permitted") if tried.returncode else None


@pytest.mark.row("T7")
@pytest.mark.slow
@pytest.mark.long
async def test_late_and_in_pieces(long: bool, figure: Callable[[str], None]) -> None:
    pieces = stalls = answers = 0
    for seed in range(SEED, SEED + (10 if long else 1)):
        draw = random.Random(seed)
        known = talks(draw, LARGE_BYTES)
        async with Upstream(replica(known)) as upstream, Way(upstream.port, draw) as far:
            async with gateway(far.url) as bench, Way(bench.port, draw) as near:
                wrong = await hold(known, draw, lambda: Client.connect(near.port))
                assert wrong == []
                assert received(known, [one.body for one in upstream.asked]) == []
        pieces += near.pieces + far.pieces
        stalls += near.stalls + far.stalls
        answers += len(known)
    assert stalls > 0
    figure(
        f"through relays, 100 ms each way: {answers} answers in {pieces:,} pieces of 1 to 40 bytes,"
        f" {stalls} of them 200 ms late, no wrong byte"
    )


@pytest.mark.row("T7")
@pytest.mark.slow
async def test_deadlines_hold_over_a_bad_way() -> None:
    deadline_s = 1.5
    settings = Settings(
        server=ServerSettings(body_deadline_s=deadline_s),
        upstream=UpstreamSettings(
            first_byte_deadline_s=deadline_s, between_chunks_deadline_s=deadline_s
        ),
    )

    async def silent(peer: Peer) -> None:
        asked = await peer.asked()
        if b'"stream":true' in asked.body:
            await peer.send(STREAM_HEAD + chunk(TOKEN))
        await peer.gone()

    draw = random.Random(SEED)
    async with Upstream(silent) as upstream, Way(upstream.port, draw) as far:
        async with gateway(far.url, settings=settings) as bench, Way(bench.port, draw) as near:
            loop = asyncio.get_running_loop()
            took_s: dict[str, float] = {}

            async def ended(name: str, data: bytes) -> Answer:
                client = await Client.connect(near.port)
                began_s = loop.time()
                answer = await client.ask(data)
                took_s[name] = loop.time() - began_s
                client.close()
                return answer

            late, stalled, half = await asyncio.gather(
                ended("late", post(CHAT, chat())),
                ended("stalled", post(CHAT, chat(stream=True))),
                ended("half", post(CHAT, chat())[:-5]),
            )
            assert (late.status, late.whole, late.error["code"]) == (504, True, "upstream_timeout")
            assert stalled.body.startswith(TOKEN + b'data: {"error":')
            assert (half.status, half.whole, half.error["code"]) == (408, True, "body_timeout")
            assert all(one >= deadline_s for one in took_s.values())


@pytest.mark.row("T7")
@pytest.mark.slow
@pytest.mark.long(limit_s=1200)
def test_loss_reordering_and_a_small_mtu(long: bool, figure: Callable[[str], None]) -> None:
    unshare = ["unshare", "--net", *(["--map-root-user"] if os.geteuid() else [])]
    if (reason := no_namespace(unshare)) is not None:
        figure(f"loss, reordering and small MTUs on the way: not run here ({reason})")
        pytest.skip(reason)
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
    for mtu_bytes, loss in ((300, 0.01), (1500, 0.03)) if long else ((300, 0.01),):
        rounds, limit_s = (10, 300) if long else (1, 45)
        words = [str(Path("/proc/self/ns/net").readlink()), mtu_bytes, loss, rounds, limit_s]
        run = subprocess.run(
            [*unshare, sys.executable, "-m", "tests.faults.link", *map(str, words)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        told = json.loads(run.stdout)
        assert told["wrong"] == [], told
        assert told["lost"] > 0
        assert told["overtook"] > 0
        figure(
            f"over a link of MTU {mtu_bytes}, 100 ms each way: {told['answers']} answers in "
            f"{told['sent']:,} packets, {told['lost']} of them lost, {told['twice']} doubled, "
            f"{told['overtook']:,} out of order, no wrong byte"
        )

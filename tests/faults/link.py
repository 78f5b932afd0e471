"""A network in a process: a TUN device whose packets come back late, out of order, twice or not at
all. Both ends of a connection are on this machine: what is sent to FAR is read by whoever listens
on NEAR, and each packet on the way is one of the kernel's own, so all that TCP does is real.

    unshare --net --map-root-user python -m tests.faults.link PARENT MTU LOSS ROUNDS LIMIT_S

does everything of tests.faults.talks over it, with the gateway as processes of its own, and prints
what came of it as JSON. PARENT: the network namespace that this must not be, as /proc names it.

Invariants:
- Nothing is changed but in a network namespace made for this: it is refused in any other.
- Source and destination change places, so that no checksum changes.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import random
import re
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import uvloop

from tests.control.test_supervisor import Gateway
from tests.faults.talks import hold, received, replica, talks
from tests.raw import Client, Upstream

NEAR, FAR = "10.99.0.1", "10.99.0.2"
DELAY_S = 0.1
# Of DELAY_S, drawn for each packet: those sent within it may overtake each other.
_JITTER_S = 0.005
_TWICE = 0.005
_LARGE_BYTES = 8_000
_NAME = b"rough"
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x0001 | 0x1000
_PACKET_BYTES = 65536


@dataclass
class Counts:
    """Packets that were sent, and of these: lost, delivered twice, delivered before an earlier one
    (of whichever connection)."""

    sent: int = 0
    lost: int = 0
    twice: int = 0
    overtook: int = 0


class Link:
    """`with Link(draw, loss, mtu_bytes) as link` in a running loop."""

    def __init__(self, draw: random.Random, loss: float, mtu_bytes: int) -> None:
        self.counts = Counts()
        self._draw = draw
        self._loss = loss
        self._loop = asyncio.get_running_loop()
        self._last = 0
        self._tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(self._tun, _TUNSETIFF, struct.pack("16sH22x", _NAME, _IFF_TUN_NO_PI))
        name = _NAME.decode()
        for words in (
            f"addr add {NEAR}/24 dev {name}",
            f"link set {name} mtu {mtu_bytes} up",
            "link set lo up",
        ):
            subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True)

    def _arrived(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while packet := os.read(self._tun, _PACKET_BYTES):
                if packet[0] >> 4 != 4:
                    continue  # IPv6 looks for neighbours
                self.counts.sent += 1
                if self._draw.random() < self._loss:
                    self.counts.lost += 1
                    continue
                back = packet[:12] + packet[16:20] + packet[12:16] + packet[20:]
                self._send(self.counts.sent, back)
                if self._draw.random() < _TWICE:
                    self.counts.twice += 1
                    self._send(self.counts.sent, back)

    def _send(self, number: int, packet: bytes) -> None:
        delay_s = DELAY_S + self._draw.random() * _JITTER_S
        self._loop.call_later(delay_s, self._deliver, number, packet)

    def _deliver(self, number: int, packet: bytes) -> None:
        self.counts.overtook += number < self._last
        self._last = max(self._last, number)
        if self._tun >= 0:
            with contextlib.suppress(BlockingIOError):  # the kernel's queue is full: it is lost
                os.write(self._tun, packet)

    def __enter__(self) -> Self:
        self._loop.add_reader(self._tun, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._tun)
        os.close(self._tun)
        self._tun = -1


async def _run(mtu_bytes: int, loss: float, rounds: int) -> dict[str, object]:
    draw = random.Random(mtu_bytes)
    wrong: list[str] = []
    answers = 0
    known = talks(draw, _LARGE_BYTES)
    with Link(draw, loss, mtu_bytes) as link:
        async with Upstream(replica(known), NEAR) as upstream:
            argv = ["serve", "--backend", f"http://{FAR}:{upstream.port}", "--host", NEAR]
            more = ["--tokens-discover", "false", "--tokens-ask-replicas", "false"]
            # What connects and is lost twice is sent for the third time after 3 s.
            more += ["--upstream-connect-deadline-s", "15", "--control-probe-deadline-s", "15"]
            with await asyncio.to_thread(Gateway, *argv, *more) as gateway:
                found = re.search(r":(\d+)", gateway.said[0].partition("//")[2])
                assert found is not None, gateway.said
                port = int(found[1])
                for _ in range(rounds):
                    upstream.asked.clear()
                    wrong += await hold(known, draw, lambda: Client.connect(port, host=FAR))
                    asked = [one.body for one in upstream.asked if one.line.startswith(b"POST")]
                    wrong += received(known, asked)
                    answers += len(known)
                code = await asyncio.to_thread(gateway.stop)
                if code:
                    wrong.append(f"the gateway's exit code is {code}")
    return {"wrong": wrong, "answers": answers, **asdict(link.counts)}


async def _bounded(limit_s: float, mtu_bytes: int, loss: float, rounds: int) -> dict[str, object]:
    async with asyncio.timeout(limit_s):  # no process outlives its test
        return await _run(mtu_bytes, loss, rounds)


if __name__ == "__main__":
    parent, mtu, share, times, limit = sys.argv[1:]
    if str(Path("/proc/self/ns/net").readlink()) == parent:
        sys.exit("not in a network namespace of its own")
    done = uvloop.run(_bounded(float(limit), int(mtu), float(share), int(times)))
    sys.stdout.write(json.dumps(done))

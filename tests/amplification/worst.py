"""The worst inputs known, in worst.json, and what is the price of a plain chat beside them."""

from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from tests.amplification import meter
from tests.amplification.channels import CHANNELS, MIB, World
from tests.amplification.shapes import Shape

_FILE = Path(__file__).with_name("worst.json")
RATIO_LIMIT = 100
TURN_LIMIT_S = 0.05
_MEASURED: list[tuple[int, float]] = []


class Plain:
    """CPU of a chat by its bytes: between sizes that were measured a straight line."""

    def __init__(self, points: list[tuple[int, float]]) -> None:
        self._points = points

    @classmethod
    async def measured(cls, at: World) -> Self:
        """Of new text, the cheapest of five; once in a process, for it takes seconds."""
        if _MEASURED:
            return cls(_MEASURED)
        points = []
        for size in (300, 4096, 65536, MIB):
            costs = [await meter.cpu(partial(at.plain, size), at.peers) for _ in range(5)]
            points.append((costs[0].sent_bytes, min(one.cpu_s for one in costs)))
        _MEASURED[:] = points
        return cls(points)

    def cpu_s(self, size_bytes: int) -> float:
        """Of a chat of this size."""
        if size_bytes <= self._points[0][0]:
            return self._points[0][1]
        for (small, low_s), (large, high_s) in zip(self._points, self._points[1:]):
            if size_bytes <= large:
                return low_s + (high_s - low_s) * (size_bytes - small) / (large - small)
        large, high_s = self._points[-1]
        return high_s * size_bytes / large


class Worst(msgspec.Struct, frozen=True):
    """An input, and what it cost. plain_s: CPU of a plain chat of as many bytes."""

    channel: str
    aim: str
    shape: Shape
    size: int
    sent_bytes: int
    cpu_s: float
    plain_s: float
    turn_s: float
    peak_bytes: int
    kept_bytes: int

    @property
    def ratio(self) -> float:
        """CPU for that of a plain chat."""
        return self.cpu_s / self.plain_s

    def by(self, aim: str) -> float:
        """What the search for it looked at."""
        return {"cpu": self.ratio, "turn": self.turn_s}.get(aim, self.peak_bytes / self.sent_bytes)

    def line(self) -> str:
        """For people."""
        sent = self.sent_bytes
        return (
            f"{self.channel:18} {self.aim:7} {sent:>9,} B  {self.ratio:7.2f} x plain"
            f"  {self.cpu_s / sent * 1e9:8.0f} ns/B  turn {self.turn_s * 1e3:7.1f} ms"
            f"  peak {self.peak_bytes / sent:6.1f}  kept {self.kept_bytes / sent:6.2f} B/B"
            f"  {shortened(self.shape)}"
        )


def shortened(shape: Shape) -> str:
    """How an input begins and goes on."""

    def part(text: str) -> str:
        said = repr(text.encode("latin-1"))[2:-1]
        return said if len(said) <= 60 else said[:40] + "…" + said[-16:]

    return f"{part(shape.head)} ({part(shape.unit)})* {part(shape.tail)}".strip()


def read() -> list[Worst]:
    """Those known."""
    return msgspec.json.decode(_FILE.read_bytes(), type=list[Worst]) if _FILE.exists() else []


def kept(found: list[Worst]) -> list[Worst]:
    """What was found, and of channels that were not searched what was known."""
    searched = {one.channel for one in found}
    all_of = [one for one in read() if one.channel not in searched] + found
    order = list(CHANNELS)
    return sorted(all_of, key=lambda one: order.index(one.channel))


def write(worst: list[Worst]) -> None:
    """Replaces the file."""
    _FILE.write_bytes(msgspec.json.format(msgspec.json.encode(worst), indent=1) + b"\n")

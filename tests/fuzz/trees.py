"""Any bytes as what YAML could have made of a settings file: mappings, lists and scalars.

Invariants:
- Every byte means something, and one more or less changes little: a search by mutation gets far.
- What is small stays small: depth and size are bounded by the bytes.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

from tokenlane.config.options import OPTIONS

_SECTIONS = sorted({option.section for option in OPTIONS.values()} - {""})
_NAMES = sorted({path.rpartition(".")[2] for path in OPTIONS})
_TEXTS = (
    "", "demo", "127.0.0.1", "http://127.0.0.1:8000", "tcp://*:5557", "affinity", "prefix-hash",
    "round-robin", "json", "off", "all", "completions", "10.0.0.0/8", "sha256:00", "0.5",
)  # fmt: skip
# As YAML spells them, and as nobody should.
_ODD = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**40, 0.0, 0.5, -0.5, 1e308,
    float("nan"), float("inf"), date(2027, 1, 31), datetime(2027, 1, 31, tzinfo=UTC), b"bytes",
    frozenset({"a"}), ("a", 1),
)  # fmt: skip


class _Reader:
    """Bytes to be used up; behind their end there are zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def over(self) -> bool:
        return self._at >= len(self._data)

    def byte(self) -> int:
        self._at += 1
        return 0 if self._at > len(self._data) else self._data[self._at - 1]

    def text(self) -> str:
        size = self.byte() % 24
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken.decode("utf-8", "replace")

    def one_of(self, values: Any) -> Any:
        return values[(self.byte() << 8 | self.byte()) % len(values)]


def _key(reader: _Reader) -> Any:
    kind = reader.byte()
    if kind < 110:
        return reader.one_of(_NAMES)
    if kind < 220:
        return reader.one_of(_SECTIONS)
    return reader.one_of(_ODD) if kind < 230 else reader.text()


def _mapping(reader: _Reader) -> dict[Any, Any]:
    size = reader.byte() % 8
    return {_key(reader): _value(reader) for _ in range(size) if not reader.over}


def _list(reader: _Reader) -> list[Any]:
    size = reader.byte() % 8
    return [_value(reader) for _ in range(size) if not reader.over]


_KINDS: tuple[Callable[[_Reader], Any], ...] = (
    _mapping,
    _list,
    lambda reader: reader.one_of(_ODD),
    lambda reader: reader.one_of(_TEXTS),
    lambda reader: reader.text(),
    lambda reader: reader.byte(),
    lambda reader: reader.byte() / 16,
    lambda reader: bool(reader.byte() & 1),
)


def _value(reader: _Reader) -> Any:
    return _KINDS[reader.byte() % len(_KINDS)](reader)


def tree(data: bytes) -> dict[Any, Any]:
    """The top of a file."""
    reader = _Reader(data)
    found: dict[Any, Any] = {}
    while not reader.over:
        found[_key(reader)] = _value(reader)
    return found

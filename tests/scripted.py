"""The transport of a protocol that a test drives by hand: nothing arrives, and nothing ends, but by
the test's next line."""

import socket
from collections.abc import Callable, Mapping
from typing import Any


class ScriptedTransport:
    """written: all that was. on_write: called before each of it. ended: "close" or "abort"."""

    def __init__(self) -> None:
        self.written = b""
        self.on_write: Callable[[], object] = lambda: None
        self.ended = ""
        self.sock = socket.socket()

    def write(self, data: bytes) -> None:
        self.on_write()
        self.written += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        self.ended = self.ended or "close"

    def abort(self) -> None:
        self.ended = "abort"

    def is_closing(self) -> bool:
        return bool(self.ended)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        assert not self.ended

    def get_extra_info(self, name: str) -> Any:
        return self.sock if name == "socket" else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def reachable(table: Mapping[int, Mapping[int, int]], state: int) -> set[int]:
    """The states that a table leads to, sooner or later."""
    found = {state}
    while more := {after for one in found for after in table[one].values()} - found:
        found |= more
    return found

"""Who takes the answer of a replica.

Invariant: exactly one call of `on_whole`, `on_end` or `on_failure` ends an answer, and no call
follows it, nor the `abort` of its connection.
"""

from typing import Protocol

from tokenlane.errors import UpstreamError
from tokenlane.http.heads import ResponseHead


class ResponseSink(Protocol):
    """The receiver of an answer. Called on the loop, straight from the socket's callback."""

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Take head and body of an answer of fixed length that arrived at once: nothing follows."""

    def on_head(self, head: ResponseHead, length_bytes: int | None) -> None:
        """Take the final head (interim ones are dropped). length_bytes: of a body of fixed length,
        None where chunks or the end of the connection frame it."""

    def on_body(self, framed: bytes, payload: list[bytes]) -> None:
        """Take body bytes as they arrived (chunk framing included), and what they carry."""

    def on_end(self) -> None:
        """Note that the answer is complete."""

    def on_failure(self, error: UpstreamError) -> None:
        """Note that the answer will never be complete."""

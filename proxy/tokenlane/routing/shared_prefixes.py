"""Prefixes that gateways tell each other of, where no KV events say what replicas hold. Pure.

A gateway offers what it routed to its outbox, sends what `take` returns, and applies what it reads
of the others' to its index (`Router.learn`). Of replicas whose events it follows it tells nothing.

Invariants:
- At most limit_bytes_per_s are told, in bursts of a second's worth (or two prompts'). The newest
  goes first; what does not fit is kept up to a burst and then dropped, the oldest first.
- A batch is in the order in which its prefixes were routed, so that all indexes age alike.
- Of a long prompt its head is told. Prefixes that were hashed in another way are not read.
"""

from collections import OrderedDict
from typing import Annotated

import msgspec
from msgspec import Meta

from tokenlane.errors import UNREADABLE
from tokenlane.prompt import HASH_BYTES

PREFIX_LIMIT_BYTES = 8 * 1024
# What a prefix costs beside its hashes, its replica's id and its tenant.
_FRAME_BYTES = 8


class RoutedPrefix(msgspec.Struct, frozen=True, array_like=True):
    """A prompt that was routed to a replica. blocks: packed hashes, from the first on. tenant:
    whose it is, where there are tenants."""

    replica_id: Annotated[str, Meta(max_length=1024)]
    blocks: Annotated[bytes, Meta(min_length=HASH_BYTES, max_length=PREFIX_LIMIT_BYTES)]
    tenant: Annotated[str, Meta(max_length=64)] = ""

    @property
    def size_bytes(self) -> int:
        """In a batch, about."""
        return _FRAME_BYTES + len(self.replica_id) + len(self.tenant) + len(self.blocks)


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    hashing: bytes
    prefixes: list[RoutedPrefix]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Batch).decode


class PrefixOutbox:
    """hashing: the same where prompts are hashed alike (tokens.blocks.hashing_mark). Times:
    monotonic seconds. dropped: prefixes that were not told."""

    def __init__(self, hashing: bytes, limit_bytes_per_s: int) -> None:
        self._hashing = hashing
        self._limit_bytes_per_s = limit_bytes_per_s
        self._burst_bytes = max(limit_bytes_per_s, 2 * PREFIX_LIMIT_BYTES)
        self._allowed_bytes = float(self._burst_bytes)
        self._taken_s = 0.0
        self._queue: OrderedDict[tuple[str, bytes], RoutedPrefix] = OrderedDict()
        self._queued_bytes = 0
        self.dropped = 0

    def offer(self, replica_id: str, blocks: bytes, tenant: str = "") -> None:
        """A prompt was routed just now. The same one again takes the place of the earlier."""
        blocks = blocks[:PREFIX_LIMIT_BYTES]
        if not blocks:
            return
        prefix = RoutedPrefix(replica_id, blocks, tenant)
        key = replica_id, blocks[-HASH_BYTES:]
        before = self._queue.pop(key, None)
        if before is not None:
            self._queued_bytes -= before.size_bytes
        self._queue[key] = prefix
        self._queued_bytes += prefix.size_bytes
        while self._queued_bytes > self._burst_bytes:
            self._queued_bytes -= self._queue.popitem(last=False)[1].size_bytes
            self.dropped += 1

    def take(self, now: float) -> bytes:
        """The batch to send now; empty if there is nothing to tell."""
        grown = self._allowed_bytes + (now - self._taken_s) * self._limit_bytes_per_s
        self._allowed_bytes = min(grown, float(self._burst_bytes))
        self._taken_s = now
        taken: list[RoutedPrefix] = []
        while self._queue:
            key, prefix = self._queue.popitem()
            if prefix.size_bytes > self._allowed_bytes:
                self._queue[key] = prefix
                break
            self._allowed_bytes -= prefix.size_bytes
            self._queued_bytes -= prefix.size_bytes
            taken.append(prefix)
        return _encode(_Batch(self._hashing, taken[::-1])) if taken else b""

    def __repr__(self) -> str:
        return f"<PrefixOutbox {len(self._queue)} queued, {self.dropped} dropped>"


def read(batch: bytes, hashing: bytes) -> list[RoutedPrefix]:
    """What another gateway told, in the order in which to apply it; nothing of a batch that is none
    or was hashed in another way."""
    try:
        told = _decode(batch)
    except UNREADABLE:
        return []
    if told.hashing != hashing:
        return []
    return [one for one in told.prefixes if len(one.blocks) % HASH_BYTES == 0]

"""What this worker routes where, for the other workers and the other gateways.

Invariants:
- Prefixes are told together, those of GATHER_S in one message: told one by one, each request would
  wake every other process.
- What was told is told again after AGAIN_S at the earliest: to the others it is no news, and who
  started meanwhile has it soon. What the supervisor did not take was not told, nor was anything
  where a replica's cache is empty since.
"""

import asyncio
from collections.abc import Callable

from tokenlane.fleet_state import FleetState
from tokenlane.prompt import HASH_BYTES
from tokenlane.routing.candidates import restarted

GATHER_S = 0.005
AGAIN_S = 10.0
# Of one message, about: what it makes the others do is a small part of a turn of their loops.
MESSAGE_BYTES = 128 * 1024
TOLD_COUNT = 8192


class PrefixReports:
    """Of one worker. tell: the supervisor, of (slot, blocks, tenant) each, in the order routed;
    returns whether it took them."""

    def __init__(self, tell: Callable[[list[tuple[int, bytes, str]]], bool]) -> None:
        self._tell = tell
        self._gathered: list[tuple[int, bytes, str]] = []
        self._gathered_bytes = 0
        self._told: set[tuple[int, bytes]] = set()
        self._forgetting: asyncio.TimerHandle | None = None
        self._fleet = FleetState(version=0, replicas=())

    def update(self, fleet: FleetState) -> None:
        """Adopt a new snapshot of the replicas: by it the others forget what was told, too."""
        if list(restarted(self._fleet, fleet)):
            self._told.clear()
        self._fleet = fleet

    def routed(self, slot: int, blocks: bytes, tenant: str) -> None:
        """Tell, soon, that a prompt with these blocks was sent to the replica."""
        key = slot, blocks[-HASH_BYTES:]
        if not blocks or key in self._told:
            return
        loop = asyncio.get_running_loop()
        if self._forgetting is None:
            self._forgetting = loop.call_later(AGAIN_S, self._forget)
        if len(self._told) >= TOLD_COUNT:
            self._told.clear()
        self._told.add(key)
        if not self._gathered:
            loop.call_later(GATHER_S, self._tell_gathered)
        self._gathered.append((slot, blocks, tenant))
        self._gathered_bytes += len(blocks)
        if self._gathered_bytes >= MESSAGE_BYTES:
            self._tell_gathered()

    def _tell_gathered(self) -> None:
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered and not self._tell(gathered):
            self._told.clear()

    def _forget(self) -> None:
        self._told.clear()
        self._forgetting = None

"""Which replica keeps each stored response, and whose it is: what the workers here saw made, and
what the other gateways tell.

Invariants:
- Where a response is kept is a hint; whose it is decides who may have it, and never changes.
- What was made goes out once, in the order it was made; all that is known goes out again, in
  batches, where a gateway is new to us or the store was away.
- A name that is not known here may be in a message that is still on its way: with a store, nobody
  is told so before the others had time to speak.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from tokenlane.control.fleet_table import FleetTable
from tokenlane.control.peers.peer_message import Home, replica_key
from tokenlane.routing.response_homes import LIMIT_COUNT, ResponseHomes

BATCH_COUNT = 256


class ResponseSharing:
    """wait_s: how long the others' news may take; 0 where there are no others."""

    def __init__(self, fleet: FleetTable, wait_s: float) -> None:
        self._fleet = fleet
        self._wait_s = wait_s
        self._homes = ResponseHomes()
        self._outbox: deque[Home] = deque(maxlen=LIMIT_COUNT)

    def made(self, name: str, slot: int, tenant: str) -> None:
        """Remember a response that a replica made for a request here, and tell the others."""
        self._homes.learn(name, slot, tenant)
        if self._wait_s:
            self._tell(name, slot, tenant)

    def _tell(self, name: str, slot: int, tenant: str) -> None:
        replica = self._fleet.get(slot)
        if replica is not None:
            self._outbox.append((name, replica_key(replica.id), tenant))

    def find(self, name: str, tell: Callable[[int, str], object]) -> None:
        """Tell the slot of a response and its tenant, now or soon; (-1, "") for an unknown one."""
        slot, tenant = self._homes.find(name)
        loop = asyncio.get_running_loop()
        if slot < 0 and self._wait_s:
            loop.call_later(self._wait_s, lambda: tell(*self._homes.find(name)))
        else:
            tell(slot, tenant)

    def due(self) -> Sequence[Home]:
        """Return what to tell the others now. It counts as told."""
        return [self._outbox.popleft() for _ in range(min(BATCH_COUNT, len(self._outbox)))]

    def again(self) -> None:
        """Tell everything once more: somebody may not have heard it."""
        self._outbox.clear()
        for name, slot, tenant in self._homes:
            self._tell(name, slot, tenant)

    def heard(self, told: Sequence[Home], slots: Mapping[int, int]) -> None:
        """Remember what another gateway told. slots: of our replicas, by their keys."""
        for name, key, tenant in told:
            if key in slots:
                self._homes.learn(name, slots[key], tenant)

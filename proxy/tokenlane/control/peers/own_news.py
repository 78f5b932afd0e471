"""What this gateway has to tell the others, and when. Pure: the time is an argument.

Invariants:
- Only what changed is sent; everything once a second, and as soon as a gateway is new to us or the
  store was away, so that who missed something has it again.
- A gateway with nothing to tell says so often enough to keep its lease.
"""

from collections.abc import Mapping, Sequence

import msgspec

from tokenlane.control.peers.peer_message import (
    NO_LOAD,
    Home,
    Load,
    PeerMessage,
    packed,
)
from tokenlane.control.peers.place_ledger import Claims

WHOLE_INTERVAL_S = 1.0
_NO_CLAIM = (0, 0)
# Messages within a lease: some may be late.
_BEATS = 4


class OwnNews:
    """This gateway's side. who: its message with nothing in it but who it is. lease_s: how long
    the others believe what they heard last."""

    def __init__(self, who: PeerMessage, lease_s: float) -> None:
        self._who = who
        self._beat_s = lease_s / _BEATS
        self._told: Mapping[int, Load] = {}
        self._told_places: Claims = {}
        self._sent_s = float("-inf")
        self._whole_s = float("-inf")

    def due(
        self,
        loads: Mapping[int, Load],
        places: Claims,
        now_s: float,
        wall_s: float,
        prefixes: bytes = b"",
        responses: Sequence[Home] = (),
    ) -> PeerMessage | None:
        """Return what is to be sent now; None if nothing is. It counts as sent."""
        told, told_places = self._told, self._told_places
        self._told, self._told_places = loads, places
        who = PeerMessage(self._who.gateway)
        if now_s - self._whole_s >= WHOLE_INTERVAL_S:  # everything, as if nothing had been told
            self._whole_s = now_s
            told, told_places = {}, {}
            who = msgspec.structs.replace(self._who, whole=True, sent_s=wall_s)
        changed = [(key, load) for key, load in loads.items() if told.get(key, NO_LOAD) != load]
        changed += [(key, NO_LOAD) for key in told if key not in loads]
        claims = {
            key: claim for key, claim in places.items() if told_places.get(key, _NO_CLAIM) != claim
        }
        quiet = not (who.whole or changed or claims or prefixes or responses)
        if quiet and now_s - self._sent_s < self._beat_s:
            return None
        self._sent_s = now_s
        return msgspec.structs.replace(
            who, loads=packed(changed), places=claims, prefixes=prefixes, responses=responses
        )

    def again(self) -> None:
        """Send everything with the next message: somebody may not have heard it."""
        self._whole_s = float("-inf")

    def farewell(self) -> PeerMessage:
        """Return the last message."""
        return PeerMessage(self._who.gateway, leaves=True)

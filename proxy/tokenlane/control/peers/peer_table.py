"""What the other gateways said, as long as it holds. Pure: times are arguments.

Invariants:
- A gateway that was not heard for a lease is forgotten with all it had in flight. The lease runs
  from when we heard it, by our monotonic clock; the others' clocks are only shown.
- `totals` is the sum of what they have in flight, and `changed` the replicas whose sum is another
  one since somebody took it: the work is by what changed, not by who there is.
- Memory is bounded: so many gateways, so many replicas of each.
"""

from collections.abc import Container

from tokenlane.control.dashboard.live import PeerRow
from tokenlane.control.peers.peer_message import NO_LOAD, Load, PeerMessage, unpacked

PEER_LIMIT = 256
REPLICA_LIMIT = 4096
_TEXT_LIMIT = 64


class Peer:
    """Another gateway. skew_s: by how much its wall clock is ahead of ours, None until it said."""

    __slots__ = ("loads", "name", "seen_s", "skew_s", "version")

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = ""
        self.seen_s = 0.0
        self.skew_s: float | None = None
        self.loads: dict[int, Load] = {}

    def row(self, now_s: float, known: Container[int]) -> PeerRow:
        """Return what people are shown. known: the replicas that this gateway knows."""
        return PeerRow(
            name=self.name,
            version=self.version,
            seen_s=round(now_s - self.seen_s, 3),
            in_flight=sum(requests for requests, _ in self.loads.values()),
            queued_tokens=sum(queued_tokens for _, queued_tokens in self.loads.values()),
            clock_skew_s=None if self.skew_s is None else round(self.skew_s, 3),
            unknown_replicas=sum(key not in known for key in self.loads),
        )


class PeerTable:
    """All gateways but this one. gateway: this one."""

    def __init__(self, gateway: str, lease_s: float) -> None:
        self._gateway = gateway
        self._lease_s = lease_s
        self.peers: dict[str, Peer] = {}
        self.totals: dict[int, Load] = {}
        self.changed: set[int] = set()

    def take(self, message: PeerMessage, now_s: float, wall_s: float) -> Peer | None:
        """Take a message in. Return the gateway if it is new to us."""
        peer, newcomer = self.peers.get(message.gateway), None
        if message.gateway == self._gateway or message.leaves:
            if peer is not None:
                self._forget(message.gateway)
            return None
        if peer is None:
            if len(self.peers) >= PEER_LIMIT:
                return None
            peer = newcomer = self.peers[message.gateway] = Peer(message.gateway[:_TEXT_LIMIT])
        peer.seen_s = now_s
        if message.whole:
            peer.name = message.name[:_TEXT_LIMIT] or peer.name
            peer.version = message.version[:_TEXT_LIMIT]
            peer.skew_s = message.sent_s - wall_s
            there = {key for key, _, _ in unpacked(message.loads)}
            for key in peer.loads.keys() - there:
                self._set(peer, key, 0, 0)
        for key, requests, queued_tokens in unpacked(message.loads):
            self._set(peer, key, requests, queued_tokens)
        return newcomer

    def _set(self, peer: Peer, key: int, requests: int, queued_tokens: int) -> None:
        had = peer.loads.get(key, NO_LOAD)
        if had == (requests, queued_tokens):
            return
        if requests or queued_tokens:
            if had == NO_LOAD and len(peer.loads) >= REPLICA_LIMIT:
                return
            peer.loads[key] = requests, queued_tokens
        else:
            del peer.loads[key]
        total = self.totals.get(key, NO_LOAD)
        total = total[0] + requests - had[0], total[1] + queued_tokens - had[1]
        if total == NO_LOAD:
            del self.totals[key]
        else:
            self.totals[key] = total
        self.changed.add(key)

    def _forget(self, gateway: str) -> Peer:
        peer = self.peers.pop(gateway)
        for key in list(peer.loads):
            self._set(peer, key, 0, 0)
        return peer

    def sweep(self, now_s: float) -> list[Peer]:
        """Forget the gateways whose lease has ended, and return them."""
        return [
            self._forget(gateway)
            for gateway, peer in list(self.peers.items())
            if now_s - peer.seen_s >= self._lease_s
        ]

    def next_end_s(self, now_s: float) -> float:
        """Return when the next lease may end."""
        return min((peer.seen_s for peer in self.peers.values()), default=now_s) + self._lease_s

    def news_age_s(self, now_s: float) -> float | None:
        """Return how long ago any of them was last heard; None if there is none."""
        return min((now_s - peer.seen_s for peer in self.peers.values()), default=None)

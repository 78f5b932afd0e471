"""Who has which places of tenants: this gateway's workers and the other gateways. Pure.

Invariants:
- A gateway may use what it claimed only when it read its own claim back from the stream and what
  the others had claimed before it left room. All read the stream in one order, so the portions in
  use never add up to more than the limit.
- A smaller portion is told to the workers first, and to the others when the workers have it.
- What another gateway holds stays its own while the store is away, and for RECLAIM_S after it falls
  silent: it may be cut off from the store and serve on.
- What cannot be divided goes round in turns of TURN_S: between gateways by the store's clock, which
  all read and which stands still where nothing could be claimed, between workers by our own.
- For SETTLE_S after it connected, a gateway claims nothing: others say everything in that time,
  and what they said before was not read. One that never got so far uses a hundredth of each limit.
"""

from collections.abc import Mapping

from tokenlane.admission.places import NO_PLACE, Place, next_portion

RECLAIM_S = 10.0
SETTLE_S = 1.5
# A place changes hands in a tenth of it.
TURN_S = 1.0

# Held and wanted, by key, as they travel.
Claims = Mapping[str, tuple[int, int]]


class PlaceLedger:
    """A gateway's ledger. gateway: it. What is to be said and told is worked out for the keys of
    which something changed."""

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self._limits: Mapping[str, int] = {}
        self._workers: dict[int, dict[str, Place]] = {}
        self._others: dict[str, dict[str, Place]] = {}
        self._heard_s: dict[str, float] = {}
        self._portions: dict[str, int] = {}
        self._claims: dict[str, int] = {}
        self._said: Claims = {}
        self._changed: set[str] = set()
        self._turn = 0
        self._workers_turn = 0
        self._connected_s: float | None = None
        self._may_claim = False
        self._knows_others = False

    def limit(self, limits: Mapping[str, int]) -> None:
        """Other limits are in force, by key."""
        self._said = {key: said for key, said in self._said.items() if key in limits}
        self._limits = limits
        self._changed.update(limits)

    def reported(self, worker: int, places: Mapping[str, Place]) -> None:
        """Take in what changed in a worker."""
        self._workers.setdefault(worker, {}).update(places)
        self._changed.update(places)

    def worker_came(self, worker: int) -> None:
        """It is to be told everything."""
        self._workers.setdefault(worker, {})
        self._changed.update(self._limits)

    def worker_gone(self, worker: int) -> None:
        """Its requests are gone, and so is what it used."""
        self._changed.update(self._workers.pop(worker, ()))

    def connected(self, now_s: float) -> None:
        """A new connection to the store: silence is counted from now."""
        self._connected_s = now_s
        self._may_claim = False
        self._claims.clear()
        self._heard_s = dict.fromkeys(self._heard_s, now_s)
        self._changed.update(self._limits)

    def lost(self) -> None:
        """The store is gone: what is in hand stays there, and nothing is claimed."""
        self._connected_s = None
        self._may_claim = False
        self._claims.clear()

    def heard(self, gateway: str, claims: Claims, now_s: float, *, whole: bool) -> None:
        """Take in another gateway's claims; whole: it has no others."""
        places = {
            key: Place(held, 0, wanted)
            for key, (held, wanted) in claims.items()
            if key in self._limits
        }
        before = self._others.get(gateway, {})
        self._others[gateway] = places if whole else before | places
        self._heard_s[gateway] = now_s
        self._changed.update(before.keys() | places.keys() if whole else places)

    def left(self, gateway: str) -> None:
        """Another gateway ended, and holds nothing."""
        self._changed.update(self._others.pop(gateway, ()))
        self._heard_s.pop(gateway, None)

    def echoed(self) -> None:
        """Our own claims were read back, after all that came before them: those that fit hold."""
        for key, claim in self._claims.items():
            others = sum(places.get(key, NO_PLACE).held for places in self._others.values())
            if claim + others <= self._limits.get(key, 0):
                self._portions[key] = claim
        self._changed.update(self._claims)
        self._claims.clear()

    def clock(self, store_s: float) -> None:
        """What was read from the store was put there at this time of its clock."""
        if (turn := int(store_s / TURN_S)) != self._turn:
            self._turn = turn
            self._turns()

    def due(self, now_s: float) -> tuple[Claims, dict[int, dict[str, int]]]:
        """Return what is to be said to the other gateways, of all keys, and to each worker, of
        those that may have changed."""
        if self._connected_s is not None:
            self._look_at_the_clock(now_s, self._connected_s)
        # A gateway's turns come again after one of each: if its workers' were as short, they would
        # be the same worker's each time.
        turn = int(now_s / TURN_S / (1 + len(self._others)))
        if turn != self._workers_turn:
            self._workers_turn = turn
            self._turns()
        changed = self._changed & self._limits.keys()
        self._changed.clear()
        if changed:
            self._said = {**self._said, **{key: self._settle(key) for key in changed}}
        return self._said, self._for_workers(changed)

    def _turns(self) -> None:
        """Another turn: it is of interest where somebody wants something."""
        for places in self._workers.values():
            self._changed.update(key for key, place in places.items() if place.wanted)

    def _look_at_the_clock(self, now_s: float, connected_s: float) -> None:
        if not self._may_claim and now_s - connected_s >= SETTLE_S:
            self._may_claim = self._knows_others = True
            self._changed.update(self._limits)
        for gateway, heard_s in list(self._heard_s.items()):
            if now_s - heard_s > RECLAIM_S:
                self.left(gateway)

    def _settle(self, key: str) -> tuple[int, int]:
        """Give back or claim places of a key. Return what to say of it."""
        held = [places.get(key, NO_PLACE) for places in self._workers.values()]
        used = sum(place.held for place in held)
        wanted = min(sum(place.wanted for place in held), self._limits[key])
        own = Place(self._portions.get(key, 0), used, wanted)
        places = {name: others.get(key, NO_PLACE) for name, others in self._others.items()}
        places[self._gateway] = own
        portion = next_portion(self._gateway, places, self._limits[key], self._turn)
        self._claims.pop(key, None)
        if portion < own.portion:
            self._portions[key] = portion
        elif portion > own.portion and self._may_claim:
            self._claims[key] = portion
        return max(self._claims.get(key, 0), self._portions.get(key, 0), used), wanted

    def _for_workers(self, keys: set[str]) -> dict[int, dict[str, int]]:
        told: dict[int, dict[str, int]] = {worker: {} for worker in self._workers}
        for key in keys:
            portion = self._portions.get(key, 0)
            if not self._knows_others:
                portion = max(portion, -(-self._limits[key] // 100))
            places = {str(one): held.get(key, NO_PLACE) for one, held in self._workers.items()}
            for worker in self._workers:
                name = str(worker)
                after = next_portion(name, places, portion, self._workers_turn)
                told[worker][key] = after
                # What was just given is not free for the next.
                places[name] = places[name]._replace(portion=max(after, places[name].portion))
        return told

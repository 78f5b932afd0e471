"""Consistent hashing with bounded load, without a ring and without state.

Each replica draws a lot for a key (rendezvous hashing); the order of the lots is the key's
preference. A replica that joins or leaves moves only the keys that are its own.

Invariants:
- The preference depends on the key and the slots alone: every worker, and every gateway that lists
  the replicas in the same order, has the same.
- No replica is chosen while it has more than `load_factor` times its share of the requests in
  flight; the first in the order that has room is. As the factor is at least 1, one always has.
"""

from math import ceil

from xxhash import xxh3_64_intdigest

from tokenlane.routing.decision import Candidates


def preference(key: int, among: Candidates) -> list[int]:
    """Places, the most preferred first. key: 64 bits."""
    slots = among.slots
    return sorted(range(len(slots)), key=lambda place: xxh3_64_intdigest(b"%d" % slots[place], key))


def bounded(order: list[int], among: Candidates, load_factor: float) -> int:
    """The first place of `order` with room for one more request."""
    limit = ceil(load_factor * (sum(among.requests) + 1) / len(order))
    for place in order:
        if among.requests[place] < limit:
            return place
    return order[0]


def ranks(order: list[int]) -> list[int]:
    """By place, its position in the order: what a policy shows for a cost."""
    positions = [0] * len(order)
    for position, place in enumerate(order):
        positions[place] = position
    return positions

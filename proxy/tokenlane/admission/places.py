"""Places of tenants that several share: workers of a gateway, gateways of a fleet. Pure.

Invariants:
- A place is a request in flight or a queued prompt token; both are counted under a key of their
  own, `TENANT/requests` and `TENANT/tokens`.
- Shares add up to the limit, whatever is wanted: nobody gets less than a fair part of it, or what
  they want if that is less, and what nobody wants is spread evenly for the next to come.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tokenlane.config.settings import Tenant

REQUESTS, TOKENS = "/requests", "/tokens"


class Place(NamedTuple):
    """One sharer's part of a key. portion: what it may use. used: what it uses, which is more while
    a smaller portion is new. wanted: what it would use now, if it could."""

    portion: int
    used: int
    wanted: int

    @property
    def held(self) -> int:
        """Return what nobody else may use."""
        return max(self.portion, self.used)


NO_PLACE = Place(0, 0, 0)


def place_limits(tenants: Mapping[str, Tenant]) -> dict[str, int]:
    """Return what is limited, by key."""
    limits = {}
    for name, tenant in tenants.items():
        limits[name + REQUESTS] = tenant.concurrency_limit_count
        limits[name + TOKENS] = tenant.queued_limit_tokens
    return {key: limit for key, limit in limits.items() if limit}


def fair_shares(wanted: Mapping[str, int], limit: int, turn: int = 0) -> dict[str, int]:
    """Divide a limit among sharers by what they want. Whoever computes it of the same numbers gets
    the same. turn: with the next, what cannot be divided goes to the next sharers."""
    level, left, sharers = limit, limit, len(wanted)
    for one in sorted(wanted.values()):
        if one * sharers > left:
            level = left // sharers
            break
        left -= one
        sharers -= 1
    shares = {name: min(one, level) for name, one in wanted.items()}
    left = limit - sum(shares.values())
    # With less than one for each, whoever gets none now would get none for ever.
    more = sorted(name for name, one in wanted.items() if one > level) or sorted(wanted)
    for number, name in enumerate(more):
        shares[name] += left // len(more) + ((number + turn) % len(more) < left % len(more))
    return shares


def next_portion(name: str, places: Mapping[str, Place], limit: int, turn: int = 0) -> int:
    """Return what a sharer's portion should be: less than it is only if somebody else is in need or
    there is less to share, more only if it may soon want it and it is free. turn: as for
    `fair_shares`."""
    own = places[name]
    if len(places) == 1:
        return limit
    fair = fair_shares({one: place.wanted for one, place in places.items()}, limit, turn)[name]
    others = [place for one, place in places.items() if one != name]
    if own.portion > fair:
        in_need = any(place.wanted > place.held for place in others)
        overdrawn = sum(place.portion for place in places.values()) > limit
        return fair if in_need or overdrawn else own.portion
    margin = max(1, limit // 50)
    if own.wanted + margin <= own.portion:
        return own.portion
    free = limit - sum(place.held for place in others)
    return max(own.portion, min(fair, free))

"""Who should be in the fleet, held against who is. Pure.

Invariants:
- A replica is wanted as long as one source names it; who names it first is its origin.
- Whom nobody names any more drains, and leaves once nothing of it is in flight.
- What a person said of a replica (drain it, remove it) stands until they say otherwise, or until
  no source names it any more: the next answer of a source does not undo it.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec


class Member(msgspec.Struct, frozen=True):
    """A replica of the fleet. origin: the source that named it. held: a person drains it.
    leaving: nobody wants it any more."""

    slot: int
    id: str
    url: str
    origin: str
    held: bool = False
    leaving: bool = False

    @property
    def draining(self) -> bool:
        """Whether it gets nothing new."""
        return self.held or self.leaving


class Reconciliation(msgspec.Struct, frozen=True):
    """What is to be done. add: URL and origin of those that are new. stay, leave: slots of those
    that are wanted again, and no more. dismissed: removed by a person and still named."""

    add: tuple[tuple[str, str], ...]
    stay: tuple[int, ...]
    leave: tuple[int, ...]
    dismissed: frozenset[str]


def wanted(sources: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """By URL, the first source that names it. sources: in the order that counts."""
    named: dict[str, str] = {}
    for source, urls in sources.items():
        for url in urls:
            named.setdefault(url, source)
    return named


def reconcile(
    named: Mapping[str, str], members: Collection[Member], dismissed: frozenset[str]
) -> Reconciliation:
    """named: as of `wanted`. dismissed: URLs that a person removed."""
    still = dismissed & named.keys()
    there = {member.url for member in members}
    return Reconciliation(
        add=tuple(
            (url, source) for url, source in named.items() if url not in there and url not in still
        ),
        stay=tuple(one.slot for one in members if one.leaving and one.url in named),
        leave=tuple(one.slot for one in members if not one.leaving and one.url not in named),
        dismissed=still,
    )

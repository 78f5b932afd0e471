"""Which replicas and models have been gone for so long that their labels go, too. Pure.

Invariants:
- Only what was present once can depart: labels that stand for nothing (`other`) stay.
- The supervisor stops showing a label before the first worker gives it up: what is summed over the
  workers does not fall piece by piece, which `rate` would take for a restart.
- What is remembered is as large as what was present in the last SHOWN_S.
"""

from collections.abc import Collection, Mapping

# Long enough that the last of a replica's counts are scraped, and one that is only replaced for an
# upgrade goes on where it was.
SHOWN_S = 600.0
KEPT_S = SHOWN_S + 60.0

# Values, by label.
Values = Mapping[str, Collection[str]]


class Departures:
    """The values of some labels, and when each was present last. after_s: it departs then."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._seen_s: dict[tuple[str, str], float] = {}

    def tick(self, present: Values, now_s: float) -> dict[str, set[str]]:
        """Return those that depart now, by label. present: all that are there."""
        for label, values in present.items():
            for value in values:
                self._seen_s[label, value] = now_s
        gone: dict[str, set[str]] = {}
        for (label, value), seen_s in list(self._seen_s.items()):
            if now_s - seen_s >= self._after_s:
                del self._seen_s[label, value]
                gone.setdefault(label, set()).add(value)
        return gone

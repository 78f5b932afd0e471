"""Whether requests wait for a replica's front end: the process that tokenizes prompts and hands
them to the engine. Pure.

Invariants:
- Judged over a window by what the replica counts and what gateways have in flight there: a queue in
  the engine, long prompts and long answers are no sign of it.
- A replica that started again, or does not say, is not judged.
- Whether its accelerator idles meanwhile is not asked: vLLM's `/metrics` does not say.
"""

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from tokenlane.control.replica_metrics import Scrape

# Looks, one a second.
WINDOW_LOOKS = 15
# Fewer requests than this at once leave gaps of their own, and a burst is over soon: so many looks
# have to find that many.
_LEAST_IN_FLIGHT, _LEAST_LOOKS = 4, 10
# Of the requests in flight, those that the engine does not have, to be starved and to stay so; of
# the time to the first token, what is neither queue nor prefill; of a core, what the process takes.
_OUTSIDE, _STILL_OUTSIDE, _WAITED, _BUSY = 0.67, 0.5, 0.3, 0.85


class FrontEnd(msgspec.Struct, frozen=True):
    """What a replica's front end was seen to do. starved: requests wait for it. in_flight: their
    mean number. outside: share of these that the engine does not have. waited: share of the time to
    the first token that is neither queue nor prefill; cores: CPU that the process takes; None where
    the replica does not say."""

    starved: bool = False
    in_flight: float = 0.0
    outside: float = 0.0
    waited: float | None = None
    cores: float | None = None

    @property
    def why(self) -> str:
        """What is wrong and what helps."""
        cores = f", which takes {self.cores:.2f} cores" if self.cores is not None else ""
        return (
            f"{self.outside:.0%} of its {self.in_flight:.0f} requests wait for its front end{cores}"
            ", and not for its engine: more API servers (--api-server-count), ids from the gateway"
            " (tokens.forward_tokens) or more replicas help"
        )


class FrontEnds:
    """The last looks at all replicas. known: by id, what they say."""

    def __init__(self) -> None:
        self._looks: deque[dict[str, tuple[int, Scrape]]] = deque(maxlen=WINDOW_LOOKS + 1)
        self.known: dict[str, FrontEnd] = {}

    def see(self, in_flight: Iterable[tuple[str, int]], pages: Mapping[str, Scrape]) -> None:
        """Take in a look. in_flight: requests of all gateways, by replica."""
        now = {name: (count, pages[name]) for name, count in in_flight if name in pages}
        self._looks.append(now)
        self.known = {name: self._judged(name) for name in now}

    @property
    def starved(self) -> dict[str, str]:
        """Return the replicas whose requests wait, and why."""
        return {name: one.why for name, one in self.known.items() if one.starved}

    def _judged(self, name: str) -> FrontEnd:
        looks = [look[name] for look in self._looks if name in look]
        (_, first), (_, last) = looks[0], looks[-1]
        whole = len(looks) > WINDOW_LOOKS and first.started_s == last.started_s
        return judge(looks, self.known.get(name, FrontEnd()).starved) if whole else FrontEnd()


def judge(looks: list[tuple[int, Scrape]], was_starved: bool = False) -> FrontEnd:
    """Return what looks over a window say. Each: requests in flight, and the replica's page."""
    (_, first), (_, last) = looks[0], looks[-1]
    in_flight = sum(count for count, _ in looks) / len(looks)
    # The two are of different moments, and others may ask the replica too.
    in_engine = sum(min(page.running + page.waiting, count) for count, page in looks) / len(looks)
    outside = 1.0 - in_engine / in_flight if in_flight else 0.0
    waited = cores = None
    strained = False
    first_tokens, finished = last.first_tokens - first.first_tokens, last.finished - first.finished
    first_token_s = last.first_token_s - first.first_token_s
    if min(first_tokens, finished, first_token_s) > 0:
        engine_s = (last.engine_s - first.engine_s) / finished
        waited = max(1.0 - engine_s * first_tokens / first_token_s, 0.0)
        strained = waited >= _WAITED
    if last.cpu_s and last.at_s > first.at_s:
        cores = (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s)
        # Other servers' pages have no word of their engines.
        strained |= waited is not None and cores >= _BUSY
    busy = sum(count >= _LEAST_IN_FLIGHT for count, _ in looks) >= _LEAST_LOOKS
    starved = busy and strained and outside >= (_STILL_OUTSIDE if was_starved else _OUTSIDE)
    return FrontEnd(starved, in_flight, outside, waited, cores)

"""Whether requests wait for a replica's front end: the process that tokenizes prompts and hands
them to the engine. Pure.

Invariants:
- Judged over a window by what the replica counts and what gateways have in flight there: a queue in
  the engine, long prompts and long answers are no sign of it.
- A replica that started again, or does not say, is not judged.
- What requests waited in it is its own word. Those that wait elsewhere, for a gateway that does not
  get its CPU, say, are not its.
- Throughput that stays flat, an idle engine and an idle accelerator are told, and convict nobody:
  a full engine is as flat, and long gaps have other causes.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

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
# Of the requests that the engine does not have, those that wait for their first token in the front
# end: 0.2 to 0.6 where it was starved, about 0.01 where the gateway was.
_OWN = 0.1
# Windows whose rates are compared. Flat: so many times as many requests at once, and less than so
# many times the rate.
_WINDOWS = 20
_MORE_AT_ONCE, _MORE_SERVED = 2.0, 1.2


class FrontEnd(msgspec.Struct, frozen=True):
    """What a replica's front end was seen to do. starved: requests wait for it. in_flight: their
    mean number. outside: share of these that the engine does not have. idle: share of the looks at
    which the engine had none of them. None where it is not known: waited: share of the time to the
    first token that is neither queue nor prefill; cores: CPU that the process takes; per_s:
    requests that ended each second; flat: many more at once did not raise that; step_s: from one
    iteration of the engine to the next; accelerator: the share of the time that it works."""

    starved: bool = False
    in_flight: float = 0.0
    outside: float = 0.0
    idle: float = 0.0
    waited: float | None = None
    cores: float | None = None
    per_s: float | None = None
    flat: bool | None = None
    step_s: float | None = None
    accelerator: float | None = None

    @property
    def why(self) -> str:
        """What is wrong, what else shows it, and what helps."""
        cores = f", which takes {self.cores:.2f} cores" if self.cores is not None else ""
        signs = [f"idle at {self.idle:.0%} of the looks"]
        if self.step_s is not None:
            signs.append(f"an iteration each {1e3 * self.step_s:.0f} ms")
        if self.accelerator is not None:
            signs.append(f"its accelerator busy for {self.accelerator:.0%} of the time")
        if self.flat:
            signs.append("no more served when more ask")
        return (
            f"{self.outside:.0%} of its {self.in_flight:.0f} requests wait for its front end{cores}"
            f", and not for its engine ({', '.join(signs)}): more API servers (--api-server-count),"
            " ids from the gateway (tokens.forward_tokens) or more replicas help"
        )


class _Rate(NamedTuple):
    """What a replica served over a window, and with how many requests at once."""

    at_once: float
    per_s: float


class FrontEnds:
    """The last looks at all replicas. known: by id, what they say."""

    def __init__(self) -> None:
        self._looks: deque[dict[str, tuple[int, Scrape]]] = deque(maxlen=WINDOW_LOOKS + 1)
        self._rates: dict[str, deque[_Rate]] = {}
        self._seen = 0
        self.known: dict[str, FrontEnd] = {}

    def see(
        self,
        in_flight: Iterable[tuple[str, int]],
        pages: Mapping[str, Scrape],
        accelerators: Mapping[str, float],
    ) -> None:
        """Take in a look. in_flight: requests of all gateways, by replica; accelerators: the share
        of the time that those of a replica work, where that is known."""
        now = {name: (count, pages[name]) for name, count in in_flight if name in pages}
        self._looks.append(now)
        self._seen += 1
        self._rates = {name: self._rates.get(name, deque(maxlen=_WINDOWS)) for name in now}
        self.known = {name: self._judged(name, accelerators.get(name)) for name in now}

    @property
    def starved(self) -> dict[str, str]:
        """Return the replicas whose requests wait, and why."""
        return {name: one.why for name, one in self.known.items() if one.starved}

    def _judged(self, name: str, accelerator: float | None) -> FrontEnd:
        looks = [look[name] for look in self._looks if name in look]
        rates = self._rates[name]
        if looks[0][1].started_s != looks[-1][1].started_s:
            rates.clear()
        elif len(looks) > WINDOW_LOOKS:
            one = judge(looks, self.known.get(name, FrontEnd()).starved)
            if one.per_s is not None and self._seen % WINDOW_LOOKS == 0:
                rates.append(_Rate(one.in_flight, one.per_s))
            return msgspec.structs.replace(one, flat=_flat(rates), accelerator=accelerator)
        return FrontEnd()


def judge(looks: list[tuple[int, Scrape]], was_starved: bool = False) -> FrontEnd:
    """Return what looks over a window say. Each: requests in flight, and the replica's page."""
    (_, first), (_, last) = looks[0], looks[-1]
    in_flight = sum(count for count, _ in looks) / len(looks)
    # The two are of different moments, and others may ask the replica too.
    in_engine = [min(page.running + page.waiting, count) for count, page in looks]
    elsewhere = in_flight - sum(in_engine) / len(looks)
    outside = elsewhere / in_flight if in_flight else 0.0
    asked = [inside for (count, _), inside in zip(looks, in_engine, strict=True) if count]
    idle = asked.count(0) / len(asked) if asked else 0.0
    seconds_s = last.at_s - first.at_s
    waited = cores = per_s = step_s = None
    strained = False
    first_tokens, finished = last.first_tokens - first.first_tokens, last.finished - first.finished
    first_token_s = last.first_token_s - first.first_token_s
    if min(first_tokens, finished, first_token_s) > 0:
        engine_s = (last.engine_s - first.engine_s) / finished
        waited = max(1.0 - engine_s * first_tokens / first_token_s, 0.0)
        # By Little's law: seconds waited in each second are requests that wait at once.
        own = waited * first_token_s / seconds_s if seconds_s > 0.0 else 0.0
        strained = waited >= _WAITED and own >= _OWN * elsewhere
    if last.cpu_s and seconds_s > 0.0:
        cores = (last.cpu_s - first.cpu_s) / seconds_s
        # Other servers' pages have no word of their engines.
        strained |= waited is not None and cores >= _BUSY
    if finished > 0 and seconds_s > 0.0:
        per_s = finished / seconds_s
    if last.iterations > first.iterations:
        step_s = seconds_s / (last.iterations - first.iterations)
    busy = sum(count >= _LEAST_IN_FLIGHT for count, _ in looks) >= _LEAST_LOOKS
    starved = busy and strained and outside >= (_STILL_OUTSIDE if was_starved else _OUTSIDE)
    return FrontEnd(
        starved, in_flight, outside, idle, waited=waited, cores=cores, per_s=per_s, step_s=step_s
    )


def _flat(rates: Iterable[_Rate]) -> bool | None:
    """Return whether the most at once were served no faster than far fewer; None if as many never
    came, or no look found one in flight."""
    most = max((rate.at_once for rate in rates), default=0.0)
    few = [rate.per_s for rate in rates if rate.at_once * _MORE_AT_ONCE <= most]
    many = [rate.per_s for rate in rates if rate.at_once * _MORE_AT_ONCE > most]
    return max(many) < _MORE_SERVED * max(few) if few and many else None

"""What the replicas' prefix caches saved, by the replicas' own counters. Pure.

Invariants:
- The tokens never go down: what a replica counted before it was restarted or removed stays.
- A replica never spends more prefill seconds than have passed: vLLM counts the seconds of each
  request, and requests that are prefilled together are one engine's work.
- Memory is bounded: a few numbers for each of the replicas seen last.
"""

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from tokenlane.control.dashboard.live import SavedRow
from tokenlane.control.dashboard.rates import ratio
from tokenlane.control.replica_metrics import Scrape

_REPLICA_LIMIT = 4096
# A prefill is counted when its request ends: it may be of so many seconds before.
_BEFORE_S = 10.0


class _Account(msgspec.Struct):
    """A replica. page: its last. hit_tokens: of all its processes. computed_tokens, prefill_s: what
    it computed while it was watched, and how long it took; late_s: not yet in prefill_s."""

    page: Scrape
    hit_tokens: float
    computed_tokens: float = 0.0
    prefill_s: float = 0.0
    late_s: float = 0.0

    def see(self, page: Scrape) -> None:
        last = self.page
        restarted = last.started_s and page.started_s and last.started_s != page.started_s
        shrunk = page.queried_tokens < last.queried_tokens or page.hit_tokens < last.hit_tokens
        if restarted or shrunk:
            last = Scrape(at_s=last.at_s)  # a new process counts from zero
        hit_tokens = page.hit_tokens - last.hit_tokens
        waiting_s = self.late_s + page.prefill_s - last.prefill_s
        spent_s = min(waiting_s, page.at_s - last.at_s)
        self.late_s = min(waiting_s - spent_s, _BEFORE_S)
        self.hit_tokens += hit_tokens
        self.computed_tokens += page.queried_tokens - last.queried_tokens - hit_tokens
        self.prefill_s += spent_s
        self.page = page

    @property
    def token_s(self) -> float:
        """Prefill seconds of a prompt token; 0 if unknown."""
        return self.prefill_s / self.computed_tokens if self.computed_tokens > 0 else 0.0


class Savings:
    """The accounts of all replicas, by id, those seen last at the end. periods: between as many
    looks a window reaches."""

    def __init__(self, periods: int) -> None:
        self._accounts: dict[str, _Account] = {}
        self._closed_tokens = self._closed_s = 0.0
        # By replica: tokens found, tokens computed.
        self._looks: deque[dict[str, tuple[float, float]]] = deque(maxlen=periods + 1)

    def see(self, pages: Mapping[str, Scrape]) -> None:
        """Take in what the replicas say."""
        look = {}
        for name, page in pages.items():
            account = self._accounts.pop(name, None) or _Account(page, page.hit_tokens)
            if account.page is not page:
                account.see(page)
            self._accounts[name] = account
            look[name] = account.hit_tokens, account.computed_tokens
        self._looks.append(look)
        while len(self._accounts) > _REPLICA_LIMIT:
            gone = self._accounts.pop(next(iter(self._accounts)))
            self._closed_tokens += gone.hit_tokens
            self._closed_s += gone.hit_tokens * gone.token_s

    @property
    def counted(self) -> dict[str, tuple[float, float]]:
        """Return by replica the tokens found and computed, as of the last look."""
        return self._looks[-1]

    def hit_rate(self, replicas: Iterable[str]) -> float | None:
        """Return the share of prompt tokens that these found in their caches in the window."""
        found, computed = map(sum, zip((0.0, 0.0), *map(self._grown, replicas)))
        return ratio(found, found + computed)

    def row(self, window_s: float) -> SavedRow:
        """Return what was saved. window_s: how long the window is."""
        accounts = self._accounts
        tokens = sum((one.hit_tokens for one in accounts.values()), self._closed_tokens)
        known = [one.token_s for one in accounts.values() if one.token_s]
        # One that has computed nothing yet is taken for as fast as the others.
        usual_s = sum(known) / len(known) if known else 0.0
        saved_s = sum(
            (one.hit_tokens * (one.token_s or usual_s) for one in accounts.values()),
            self._closed_s,
        )
        now_s = sum(
            self._grown(name)[0] * (one.token_s or usual_s) for name, one in accounts.items()
        )
        replicas = now_s / window_s if saved_s else None
        return SavedRow(tokens=int(tokens) or None, prefill_s=saved_s or None, replicas=replicas)

    def _grown(self, name: str) -> tuple[float, float]:
        """Return the tokens that a replica found and computed in the window."""
        # A replica may be younger than the window.
        seen = [look[name] for look in self._looks if name in look] or [(0.0, 0.0)]
        return seen[-1][0] - seen[0][0], seen[-1][1] - seen[0][1]

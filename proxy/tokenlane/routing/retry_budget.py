"""How much trying again a worker allows itself: a share of its requests, and a few at any time.

Invariants:
- Over any stretch of requests, second attempts are at most `burst_count` + `ratio` of them: when
  everything fails, trying again must not multiply the load.
"""


class RetryBudget:
    """ratio: attempts beyond the first, per request. burst_count: saved up at most."""

    def __init__(self, ratio: float, burst_count: int) -> None:
        self._ratio = ratio
        self._burst = float(burst_count)
        self._left = self._burst

    def request(self) -> None:
        """A request came."""
        self._left = min(self._left + self._ratio, self._burst)

    def spend(self) -> bool:
        """Whether one more attempt may be made; it is counted if so."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

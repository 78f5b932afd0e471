"""What the caches saved: tokens, prefill seconds and replicas, from what the replicas count."""

import pytest

from tokenlane.control.dashboard import savings
from tokenlane.control.dashboard.live import SavedRow
from tokenlane.control.dashboard.savings import Savings
from tokenlane.control.replica_metrics import Scrape


def page(
    at_s: float, queried: float, hit: float, prefill_s: float = 0.0, start: float = 7
) -> Scrape:
    return Scrape(
        started_s=start, queried_tokens=queried, hit_tokens=hit, prefill_s=prefill_s, at_s=at_s
    )


def test_nothing_is_known_of_replicas_that_count_nothing() -> None:
    made = Savings(10)
    assert made.row(10.0) == SavedRow()
    made.see({"r": Scrape()})
    assert made.row(10.0) == SavedRow()
    made.see({"r": page(0.0, 100, 0)})
    assert made.row(10.0) == SavedRow()
    made.see({"r": page(0.0, 1000, 400)})
    assert made.row(10.0) == SavedRow(tokens=400)  # and no word of time


def test_seconds_are_by_the_rate_at_which_the_replica_computes() -> None:
    made = Savings(10)
    made.see({"r": page(0.0, 5000, 4000, 99.0), "other": page(0.0, 10, 6)})
    made.see({"r": page(2.0, 8000, 6000, 99.5), "other": page(2.0, 10, 6)})
    row = made.row(2.0)
    assert row.tokens == 6006
    # 1,000 tokens were computed in half a second, and 6,000 were not; the other replica, of which
    # nothing is known, is taken for as fast.
    assert row.prefill_s == pytest.approx(3.003)
    assert row.replicas == pytest.approx(0.5)


def test_prompts_that_are_prefilled_together_are_one_engine_s_work() -> None:
    made = Savings(10)
    made.see({"r": page(0.0, 0, 0)})
    made.see({"r": page(1.0, 2000, 1000, 8.0)})
    row = made.row(1.0)
    assert row.prefill_s == pytest.approx(1.0)
    # A long one is counted when its request ends.
    made = Savings(10)
    made.see({"r": page(0.0, 0, 0)})
    for second in range(1, 9):
        made.see({"r": page(float(second), 2000, 1000, 4.0)})
    assert made.row(1.0).prefill_s == pytest.approx(4.0)


@pytest.mark.parametrize(("queried", "start"), [(100, 8), (9000, 8), (100, 7), (100, 0)])
def test_a_restart_takes_nothing_away(queried: float, start: float) -> None:
    made = Savings(10)
    made.see({"r": page(0.0, 5000, 4000)})
    made.see({"r": page(1.0, queried, 50, start=start)})
    assert made.row(1.0).tokens == 4050
    made.see({"r": page(2.0, queried + 100, 90, start=start)})
    assert made.row(1.0).tokens == 4090


def test_replicas_that_left_stay_in_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savings, "_REPLICA_LIMIT", 2)
    made = Savings(10)
    for at in range(5):
        made.see({f"r{at}": page(0.0, 200, 100), "r0": page(0.0, 200, 100)})
    assert made.row(1.0).tokens == 500

"""The ladder: which rung takes a job, as a table; and that its thresholds are minimums."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.config.settings import TokenSettings
from tokenlane.prompt import Rung
from tokenlane.tokens.ladder import RUNGS, JobView, PoolView, Speed, choose

IDLE = PoolView(threads=2, queued_jobs=0, queued_bytes=0, wait_s=0.0, local_busy=False)
SETTINGS = TokenSettings(
    thread_hop_s=65e-6,
    queue_limit_jobs=4,
    queue_limit_bytes=1000,
    queue_wait_limit_s=1.0,
    stall_budget_s=0.002,
)
WAITING = TokenSettings(**{**{f: getattr(SETTINGS, f) for f in SETTINGS.__struct_fields__},
                           "fallback": "wait"})  # fmt: skip


def job(
    size_bytes: int = 100, render_s: float = 0.001, total_s: float = 0.01, late_s: float = 0.0
) -> JobView:
    return JobView(size_bytes, render_s, total_s, loop_late_s=late_s)


def pool(
    jobs: int = 1,
    size_bytes: int = 100,
    wait_s: float = 0.1,
    busy: bool = False,
) -> PoolView:
    return PoolView(2, jobs, size_bytes, wait_s, busy)


@pytest.mark.parametrize(
    ("one", "among", "settings", "rung"),
    [
        (job(render_s=60e-6), IDLE, SETTINGS, Rung.SHORT),
        (job(render_s=60e-6), pool(jobs=9), SETTINGS, Rung.SHORT),
        (job(render_s=60e-6, late_s=0.002), pool(), SETTINGS, Rung.SHORT),
        (job(render_s=60e-6, late_s=0.0021), pool(), SETTINGS, Rung.THREADS),
        (job(render_s=60e-6, late_s=0.0021), pool(), WAITING, Rung.SHORT),
        (job(render_s=60e-6, late_s=0.0021), pool(jobs=4), SETTINGS, Rung.BAIL),
        (job(render_s=66e-6), IDLE, SETTINGS, Rung.THREADS),
        (job(), pool(jobs=3), SETTINGS, Rung.THREADS),
        # An empty queue takes any size: the largest prompts must not come back to the loop.
        (job(10**9, 10.0, 100.0), IDLE, SETTINGS, Rung.THREADS),
        (job(), pool(jobs=4), SETTINGS, Rung.LOCAL),
        (job(), pool(size_bytes=901), SETTINGS, Rung.LOCAL),
        (job(), pool(size_bytes=900), SETTINGS, Rung.THREADS),
        (job(), pool(wait_s=1.1), SETTINGS, Rung.LOCAL),
        (job(), PoolView(0, 0, 0, 0.0, False), SETTINGS, Rung.LOCAL),
        (job(), pool(jobs=4, busy=True), SETTINGS, Rung.BAIL),
        (job(), pool(jobs=4, busy=True), WAITING, Rung.LOCAL),
        (job(late_s=0.002), pool(jobs=4), SETTINGS, Rung.LOCAL),
        (job(late_s=0.0021), pool(jobs=4), SETTINGS, Rung.BAIL),
        (job(late_s=0.0021), pool(jobs=4), WAITING, Rung.LOCAL),
        (job(late_s=0.0021), pool(jobs=3), SETTINGS, Rung.THREADS),
        (job(render_s=0.0021), pool(jobs=4), SETTINGS, Rung.BAIL),
        (job(render_s=0.0021), pool(jobs=4), WAITING, Rung.BAIL),
    ],
)
def test_rows(one: JobView, among: PoolView, settings: TokenSettings, rung: Rung) -> None:
    assert choose(one, lambda: among, settings) is rung


def test_the_order_is_by_price_to_the_loop() -> None:
    order = list(Rung)
    places = [order.index(rung) for rung, _ in RUNGS]
    assert places == sorted(places)


SIZES = st.integers(0, 10**9)


@given(SIZES, SIZES, st.builds(pool, st.integers(0, 9), SIZES, st.floats(0, 3), st.booleans()))
def test_a_larger_job_never_costs_the_loop_more(one: int, other: int, among: PoolView) -> None:
    """Predicted time on the loop is bounded whatever the size."""
    speed = Speed()
    for size_bytes in (one, other):
        render_s = speed.render_s(size_bytes)
        view = JobView(size_bytes, render_s, render_s + speed.encode_s(size_bytes))
        rung = choose(view, lambda: among, SETTINGS)
        if rung is Rung.SHORT:
            assert view.render_s <= SETTINGS.thread_hop_s
        if rung is Rung.LOCAL:
            assert view.render_s <= SETTINGS.stall_budget_s


def test_speed_is_learned_from_large_jobs_more_than_from_small_ones() -> None:
    slow, small = Speed(), Speed()
    for _ in range(50):
        slow.learn_render(20_000, 20e-6 + 20_000 / 10e6)
        slow.learn_encode(20_000, 20_000 / 1e6)
    small.learn_encode(20, 20 / 1e6)
    assert slow.render_bytes_per_s == pytest.approx(10e6, rel=0.01)
    assert slow.encode_bytes_per_s == pytest.approx(1e6, rel=0.01)
    assert small.encode_bytes_per_s > 1.99e6
    assert slow.encode_s(1000) == pytest.approx(0.001, rel=0.01)


@given(st.lists(st.tuples(st.integers(0, 10**8), st.floats(-1, 100), st.floats(-1, 100))))
def test_a_learned_speed_stays_a_speed(jobs: list[tuple[int, float, float]]) -> None:
    """Clocks are coarse: a job may take no time, or less."""
    speed = Speed()
    for size_bytes, render_s, encode_s in jobs:
        speed.learn_render(size_bytes, render_s)
        speed.learn_encode(size_bytes, encode_s)
        for rate in (speed.render_bytes_per_s, speed.encode_bytes_per_s):
            assert 0 < rate <= 1e9

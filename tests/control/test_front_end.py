"""What looks at a replica say of its front end: starved ones are told from busy engines."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.control.front_end import WINDOW_LOOKS, FrontEnd, FrontEnds
from tokenlane.control.replica_metrics import Scrape


def look(
    at: int, in_engine: float, per_s: float, ms: tuple[float, float, float], cores: float
) -> Scrape:
    """The page after so many seconds. ms: mean times to the first token, in queue, in prefill."""
    count = per_s * at
    first_s, queue_s, prefill_s = (one / 1e3 * count for one in ms)
    return Scrape(
        running=round(in_engine), started_s=1.0, cpu_s=10 + cores * at, at_s=100.0 + at,
        first_tokens=count, first_token_s=first_s, finished=count, engine_s=queue_s + prefill_s,
    )  # fmt: skip


def seen(in_flight: int, *pages: Scrape, busy: dict[str, float] | None = None) -> FrontEnd:
    known = FrontEnds()
    for page in pages:
        known.see([("a", in_flight), ("b", 3)], {"a": page}, busy or {})
    assert known.known.keys() == {"a"}
    return known.known["a"]


LOOKS = range(WINDOW_LOOKS + 1)


# As vLLM 0.32 (CPU build) counted them on two cores that others kept busy; of the starved ones the
# process that tokenizes was stopped for three quarters of each tenth of a second.
@pytest.mark.parametrize(
    ("in_flight", "in_engine", "per_s", "ms", "cores", "starved"),
    [
        pytest.param(0, 0, 0.0, (0.0, 0.0, 0.0), 0.01, False, id="idle"),
        pytest.param(4, 3.7, 0.4, (8339, 5089, 2948), 0.01, False, id="long prefill"),
        pytest.param(8, 6.9, 12.0, (20, 0, 3.2), 0.12, False, id="long decode"),
        pytest.param(6, 4.2, 12.3, (89, 0, 35), 0.06, False, id="small with room"),
        pytest.param(6, 2.4, 37.2, (49, 0, 25), 0.18, False, id="small beside busy neighbours"),
        pytest.param(32, 25.9, 35.6, (108, 0, 17.9), 0.08, False, id="many small"),
        pytest.param(32, 2.8, 14.0, (1690, 271, 581), 0.11, True, id="cached prompts as text"),
        pytest.param(6, 0.4, 27.2, (48.7, 0, 7.7), 0.08, True, id="small, held"),
        pytest.param(32, 0, 12.5, (1642, 0, 82), 0.10, True, id="cached prompts, held"),
        pytest.param(32, 3, 80.0, (30, 10, 15), 0.97, True, id="a whole core"),
        pytest.param(8, 2, 5.4, (9, 0, 3.3), 0.22, False, id="long decode, gateway held"),
        pytest.param(3, 0, 20.0, (50, 0, 5), 0.9, False, id="too few to tell"),
        pytest.param(32, 40, 20.0, (50, 0, 5), 0.9, False, id="others ask it too"),
    ],
)
def test_who_is_starved(
    in_flight: int,
    in_engine: float,
    per_s: float,
    ms: tuple[float, float, float],
    cores: float,
    starved: bool,
) -> None:
    pages = [look(at, in_engine, per_s, ms, cores) for at in LOOKS]
    found = seen(in_flight, *pages)
    assert found.starved == starved
    assert found.cores == pytest.approx(cores)
    assert 0.0 <= found.outside <= 1.0


HELD = [look(at, 0, 12.5, (1642, 0, 82), 0.1) for at in LOOKS]


def test_what_it_says() -> None:
    pages = [
        msgspec.structs.replace(page, iterations=8.0 * at, running=at % 2)
        for at, page in enumerate(HELD)
    ]
    assert seen(32, *pages, busy={"a": 0.12}).why == (
        "98% of its 32 requests wait for its front end, which takes 0.10 cores, and not for its"
        " engine (idle at 50% of the looks, an iteration each 125 ms, its accelerator busy for 12%"
        " of the time): more API servers (--api-server-count), ids from the gateway"
        " (tokens.forward_tokens) or more replicas help"
    )
    assert "(idle at 100% of the looks)" in seen(32, *HELD).why


def stepped(*steps: tuple[int, float]) -> FrontEnds:
    """Each: so many requests in flight for two windows, and so many ended each second."""
    known, done, at = FrontEnds(), 0.0, 100.0
    for count, per_s in steps:
        for _ in range(2 * WINDOW_LOOKS):
            done, at = done + per_s, at + 1.0
            page = Scrape(
                started_s=1.0, at_s=at, first_tokens=done, first_token_s=done, finished=done,
            )  # fmt: skip
            known.see([("a", count)], {"a": page}, {})
    return known


@pytest.mark.parametrize(
    ("steps", "flat"),
    [
        pytest.param([(8, 40.0)], None, id="one level"),
        pytest.param([(8, 40.0), (12, 41.0)], None, id="not far enough apart"),
        pytest.param([(8, 40.0), (32, 41.0)], True, id="four times as many, as much"),
        pytest.param([(8, 40.0), (32, 80.0)], False, id="twice as much"),
        pytest.param([(32, 41.0), (8, 40.0)], True, id="fewer later"),
        pytest.param([(0, 0.0), (8, 40.0)], None, id="idle before"),
        pytest.param([(0, 1.0)], None, id="over before each look"),
        pytest.param([(0, 40.0), (8, 41.0)], True, id="over before each look, then not"),
    ],
)
def test_throughput_that_stays_flat(steps: list[tuple[int, float]], flat: bool | None) -> None:
    found = stepped(*steps).known["a"]
    assert found.flat is flat
    assert ("no more served when more ask" in found.why) is bool(flat)


def test_what_an_earlier_process_served_is_forgotten() -> None:
    known = stepped((8, 40.0), (32, 41.0))
    page = Scrape(started_s=2.0, at_s=1e3)
    known.see([("a", 1)], {"a": page}, {})
    for at in range(2 * WINDOW_LOOKS):
        again = msgspec.structs.replace(page, at_s=1e3 + at, finished=at, first_tokens=at)
        known.see([("a", 1)], {"a": again}, {})
    assert known.known["a"].flat is None
    known.see([], {}, {})
    assert not known.known


def test_a_window_of_looks_is_needed_at_one_process() -> None:
    assert seen(32, *HELD[:-1]) == FrontEnd()
    again = msgspec.structs.replace(HELD[-1], started_s=2.0)
    assert seen(32, *HELD[:-1], again) == FrontEnd()


def test_a_burst_is_over_soon() -> None:
    known = FrontEnds()
    for at, page in enumerate(HELD):
        known.see([("a", 320 if at > 8 else 0)], {"a": page}, {})
    assert not known.known["a"].starved


def test_what_is_starved_stays_so_for_a_while() -> None:
    known = FrontEnds()
    said = []
    for at in range(60):
        in_engine = 0 if at < 20 else 12 if at < 40 else 30
        known.see([("a", 32)], {"a": look(at, in_engine, 12.5, (1642, 0, 82), 0.1)}, {})
        said.append(known.known["a"].starved)
    first, last = said.index(True), len(said) - said[::-1].index(True)
    assert (first, all(said[first:last])) == (WINDOW_LOOKS, True)
    assert 40 < last < 55


def test_a_page_that_says_little_convicts_nobody() -> None:
    found = seen(32, *[Scrape(at_s=100.0 + at, cpu_s=1.0 + at) for at in LOOKS])
    assert (found.starved, found.outside, found.waited, found.cores) == (False, 1.0, None, 1.0)


NUMBERS = st.floats(0.0, 2.0**53)
PAGES = st.builds(
    Scrape,
    running=st.integers(0, 50),
    waiting=st.integers(0, 50),
    started_s=st.sampled_from((1.0, 1.0, 2.0)),
    cpu_s=NUMBERS,
    first_tokens=NUMBERS,
    first_token_s=NUMBERS,
    finished=NUMBERS,
    engine_s=NUMBERS,
    iterations=NUMBERS,
    at_s=NUMBERS,
)


@given(st.lists(st.tuples(st.sampled_from((0, 1, 8, 50)), PAGES), min_size=1, max_size=4))
def test_whatever_is_counted_there_is_a_judgement(looks: list[tuple[int, Scrape]]) -> None:
    known = FrontEnds()
    for count, page in looks:
        for _ in range(WINDOW_LOOKS):
            known.see([("a", count)], {"a": page}, {"a": 0.5})
            found = known.known["a"]
            assert 0.0 <= found.outside <= 1.0
            assert found.why

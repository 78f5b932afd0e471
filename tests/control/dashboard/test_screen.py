"""The screen of `tokenlane top`: never wider or higher than the terminal, never unprintable."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.control.dashboard.live import (
    CandidateRow,
    Count,
    DecisionRow,
    EventRow,
    FleetRow,
    Live,
    Numbers,
    PeerRow,
    ReplicaRow,
    RungRow,
    SavedRow,
    StallRow,
    Verdict,
    WorkerRow,
)
from tokenlane.control.dashboard.screen import draw, number, percent, seconds, spark
from tokenlane.control.reload import ConfigRow, ReloadReport


def live_of(name: str = "10.0.0.1:8000", rows: int = 3) -> Live:
    """A busy gateway with so many of everything."""
    decision = DecisionRow(
        number=1, at_s=0.0, model=name, replica=name, policy="affinity", reason="prefix",
        why=f"it holds 4,096 of 5,000 prompt tokens; the next best, {name}, holds 0",
        prompt_tokens=5000, exact=True, cached_tokens=4096, actual_cached_tokens=4096,
        rung="threads", tokenize_s=0.001, ttft_s=0.05, duration_s=1.0, status=200, outcome="ok",
        candidates=[
            CandidateRow(replica=name, cached_tokens=1, requests=1, queued_tokens=1, cost=1.0)
        ],
        candidate_count=1,
    )  # fmt: skip
    return Live(
        version="1.2.3", url="http://127.0.0.1:8080", policy="affinity", at_s=0.0, uptime_s=1.0,
        unready=None, window_s=10.0, period_s=1.0,
        now=Numbers(requests_per_s=31.5, ttft_p50_s=0.121, hit_rate=0.79, late_worst_s=0.1),
        series={"requests_per_s": [None, 1.0, 2.0, 3.0] * 40},
        replicas=[
            ReplicaRow(
                id=name, state="up", in_flight=7, kv_usage=0.5, hit_rate=0.8, ids="regained"
            )
            for _ in range(rows)
        ],
        workers=[WorkerRow(worker=n, state="ready", late_worst_s=0.02) for n in range(rows)],
        stalls=[
            StallRow(cause="gc", count=1.0, total=12.0), StallRow(cause="os", count=0.0, total=0.0),
        ],
        rungs=[RungRow(rung="threads", per_s=30.0, share=1.0, p50_s=0.0007, p99_s=0.004)],
        reasons=[Count(word="prefix", count=1.0, share=1.0)],
        forwarded=[
            Count(word="ids", count=9.0, share=0.9), Count(word="text", count=1.0, share=0.1),
        ],
        as_text=[Count(word="unproven", count=1.0, share=1.0)],
        bails=[], models=[], decisions=[decision] * rows, settings=[],
        config=ConfigRow(
            file=name, loaded_at_s=0.0, reloads={"applied": 3, "unchanged": 0, "refused": 1},
            last=ReloadReport("refused", (), ("tokens.fetch",), (f"{name}:3: no",)),
        ),
        verdict=Verdict(text="3 of 3 up", level="good"),
        saved=SavedRow(tokens=12_400_000, prefill_s=1860.0, replicas=1.34),
        events=[EventRow(at_s=0.0, text=f"{name} is down", level="warn")] * rows,
        fleet=FleetRow(
            name=name, store="down: no answer in time",
            peers=[
                PeerRow(
                    name=name, version="1.2.2", seen_s=0.04, in_flight=12, queued_tokens=3400,
                    clock_skew_s=None, unknown_replicas=1,
                )
                for _ in range(rows)
            ],
        ),
    )  # fmt: skip


def test_a_screen() -> None:
    text = draw(live_of(), 120, 40, colour=False)
    for shown in (
        "tokenlane 1.2.3  serving  http://127.0.0.1:8080  policy affinity  3 worker(s)\n3 of 3 up",
        "requests 32 /s",
        "ttft 121 ms, p99 -",
        "cached 79 %",
        "worst 100 ms",
        "\ncaches saved 12.4M tokens, 1,860 s of prefill; now worth 1.3 replicas\n",
        "10.0.0.1:8000  up              7",
        "50 %  80 %  regained",
        "fleet 10.0.0.1:8000  store down: no answer in time",
        "10.0.0.1:8000  1.2.2    40 ms         12   3,400        1",
        "stalls by cause  gc 12",
        "threads  ██████████ 100 %     30  700 µs  4.0 ms",
        "prefix  10.0.0.1:8000  4,096 of 5,000  50 ms     200  it holds 4,096",
    ):
        assert shown in text
    assert "gc 12\n" in text
    assert "\x1b" not in text


def test_what_replicas_get_of_prompts() -> None:
    live = live_of("10.0.0.123:8000")
    text = draw(live, 80, 40, colour=False)
    assert "\nprompts sent as ids 90 %, text 10 %; as text: unproven 100 %\n" in text
    assert text.count("regained\n") == 3  # whole on a terminal of 80 columns
    live.forwarded = []
    assert "prompts sent" not in draw(live, 80, 40, colour=False)


def test_what_the_caches_saved_as_far_as_it_is_known() -> None:
    live = live_of()
    live.saved = SavedRow(tokens=500)
    assert "\ncaches saved 500 tokens\n" in draw(live, 80, 40, colour=False)
    live.saved = SavedRow()
    assert "saved" not in draw(live, 80, 40, colour=False)


def test_what_became_of_reloads() -> None:
    live = live_of()
    text = draw(live, 120, 40, colour=False)
    for shown in (
        "reloads: 3 applied, 1 refused\n",
        "the settings last read were refused: 10.0.0.1:8000:3: no\n",
        "these wait for a restart: tokens.fetch\n",
    ):
        assert shown in text
    assert live.config is not None
    live.config.reloads.clear()
    assert "reloads" not in draw(live, 120, 40, colour=False)


def test_colours_change_nothing_else() -> None:
    plain = draw(live_of(), 100, 30, colour=False)
    colourful = draw(live_of(), 100, 30, colour=True)
    assert "\x1b[31m100 ms\x1b[0m" in colourful
    without = re.sub(r"\x1b\[\d+m", "", colourful)
    assert [line.rstrip() for line in without.splitlines()] == plain.splitlines()


NAMES = st.text(st.characters(), max_size=60)


@given(NAMES, st.integers(0, 40), st.integers(1, 200), st.integers(1, 60))
def test_it_fits_and_is_printable(name: str, rows: int, width: int, height: int) -> None:
    text = draw(live_of(name, rows), width, height, colour=False)
    assert text.endswith("\n")
    drawn = text[:-1].split("\n")
    assert len(drawn) <= height
    for line in drawn:
        assert len(line) <= width
        assert line.isprintable()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "-"), (0.0, "0 µs"), (0.00025, "250 µs"), (0.0042, "4.2 ms"), (0.05, "50 ms"),
        (0.9994, "999 ms"), (12.34, "12.3 s"),
    ],
)  # fmt: skip
def test_seconds(value: float | None, said: str) -> None:
    assert seconds(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "-"), (0, "0"), (7, "7"), (3.14, "3.1"), (31.4, "31"), (9999, "9,999"),
        (12_345, "12.3k"), (3_200_000, "3.2M"), (4e9, "4.0G"),
    ],
)  # fmt: skip
def test_numbers(value: float | None, said: str) -> None:
    assert number(value) == said


def test_shares_and_sparks() -> None:
    assert (percent(None), percent(0.125), percent(1)) == ("-", "12 %", "100 %")
    assert spark([None, 0.0, 1.0, 2.0], 10) == " ▁▄█"
    assert spark([5.0, 0.0, 0.0], 2) == "▁▁"
    assert spark([], 5) == ""

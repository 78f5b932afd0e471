"""What the live page is told, out of real metrics segments and a real load board."""

import array
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest

from tests.control.dashboard.test_reasons import sample
from tokenlane import __version__
from tokenlane.config.settings import RoutingSettings, Settings
from tokenlane.control.dashboard.history import (
    DECISION_LIMIT,
    HISTORY_PERIODS,
    WINDOW_PERIODS,
    RateHistory,
)
from tokenlane.control.dashboard.live import Live, SavedRow
from tokenlane.control.fleet_table import FleetTable, Probe
from tokenlane.control.front_end import WINDOW_LOOKS
from tokenlane.control.gateway_state import GatewayState
from tokenlane.control.replica_metrics import Scrape
from tokenlane.control.stall_log import StallLog
from tokenlane.control.worker_process import WorkerProcess
from tokenlane.fleet_state import IdKind, ProofNews
from tokenlane.routing.candidates import LeftOut
from tokenlane.telemetry.load_board import SharedBoard, create_board
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.exposition import Totals
from tokenlane.telemetry.metrics.segment import MetricsSegment, create_segment
from tokenlane.telemetry.routing_sample import CandidateSample

SETTINGS = Settings(
    backends=("http://127.0.0.1:9", "http://127.0.0.1:10"), routing=RoutingSettings(alpha=0.2)
)


@dataclass
class Bench:
    watch: RateHistory
    table: FleetTable
    segment: MetricsSegment
    board: SharedBoard
    now_s: float

    def ticks(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_s += 1.0
            self.watch.tick(self.now_s)

    def live(self) -> Live:
        live = self.watch.live(uptime_s=5.0, unready=None)
        # As a page of another process reads it.
        return msgspec.json.decode(msgspec.json.encode(live), type=Live)


@pytest.fixture
def bench() -> Iterator[Bench]:
    board_fd, metrics_fd = create_board(8, 1), create_segment()
    table, totals = FleetTable(SETTINGS.backends, SETTINGS.control), Totals()
    segment = MetricsSegment(metrics_fd)
    totals.adopt(0, metrics_fd)
    state = GatewayState(
        SETTINGS, table, totals, SharedBoard(board_fd, None), {}, workers=[WorkerProcess(0)]
    )
    watch = RateHistory(state)
    yield Bench(watch, table, segment, SharedBoard(board_fd, 0), time.monotonic())
    totals.retire(0)
    os.close(board_fd)
    os.close(metrics_fd)


def test_before_anything_happened(bench: Bench) -> None:
    live = bench.live()
    assert live.version == __version__
    assert live.now.requests_per_s == 0
    assert live.now.ttft_p50_s is live.now.hit_rate is live.now.late_worst_s is None
    assert [row.state for row in live.replicas] == ["down", "down"]
    assert not any((live.stalls, live.reasons, live.models, live.decisions))
    assert {row.rung for row in live.rungs} >= {"threads", "bail"}


def test_rates_are_over_the_window_and_history_is_kept(bench: Bench) -> None:
    requests = bench.segment.counter(families.REQUESTS, "/v1/completions", "200", "ok", "m")
    for _ in range(WINDOW_PERIODS):
        requests.inc(20)
        bench.ticks()
    assert bench.live().now.requests_per_s == pytest.approx(20, rel=0.1)
    bench.ticks(WINDOW_PERIODS)
    live = bench.live()
    assert live.now.requests_per_s == 0
    points = [point for point in live.series["requests_per_s"] if point is not None]
    assert points[1:] == pytest.approx([20.0] * (WINDOW_PERIODS - 1) + [0.0] * WINDOW_PERIODS)
    bench.ticks(HISTORY_PERIODS)
    assert {len(points) for points in bench.live().series.values()} == {HISTORY_PERIODS}


@pytest.mark.parametrize(
    ("status", "outcome", "failed"),
    [
        ("200", "ok", False),
        ("404", "gateway_error", False),
        ("429", "gateway_error", False),
        ("499", "client_gone", False),
        ("503", "gateway_error", True),
        ("502", "upstream_error", True),
        ("200", "truncated", True),
        ("500", "ok", True),  # the replica's own answer, passed on whole
    ],
)
def test_what_counts_as_failed(bench: Bench, status: str, outcome: str, failed: bool) -> None:
    bench.segment.counter(families.REQUESTS, "/v1/completions", status, outcome, "m").inc(100)
    bench.ticks()
    assert bool(bench.live().now.failed_per_s) == failed


def test_what_happens_to_replicas_is_an_event(bench: Bench) -> None:
    one, other = (url.partition("://")[2] for url in SETTINGS.backends)
    good = Probe("ok", ("m",))
    for slot in (0, 1):
        bench.table.observe(slot, good)
    bench.ticks()
    assert bench.live().verdict.text == "all 2 up"
    assert {row.text for row in bench.live().events} == {f"{one} is up", f"{other} is up"}
    for _ in range(3):
        bench.table.observe(0, Probe("status", status=401))
    bench.segment.counter(families.REQUESTS, "/v1/completions", "200", "truncated", "m").inc(4)
    bench.ticks()
    live = bench.live()
    assert live.verdict.text.startswith(f"1 of 2 up; {one} down since ")
    assert live.verdict.text.endswith(", its /health answers 401; 4 answers cut")
    assert [(row.text, row.count) for row in live.events[:2]] == [
        (f"{one} is down: its /health answers 401", 0),
        ("answers cut short", 4),
    ]
    # Full for a moment, or starting: no news, but to be seen.
    bench.segment.gauge(families.LEFT_OUT, other, "full").set(1)
    bench.ticks()
    assert len(bench.live().events) == len(live.events)
    assert [row.state for row in bench.live().replicas] == ["down", "full"]


def test_a_slow_replica_is_named(bench: Bench) -> None:
    one, other = (url.partition("://")[2] for url in SETTINGS.backends)
    for slot in (0, 1):
        bench.table.observe(slot, Probe("ok", ("m",)))
    for _ in range(30):
        bench.segment.histogram(families.TPOT, "m", one).observe(0.01)
    bench.segment.histogram(families.TPOT, "m", other).observe(0.1)
    bench.ticks()
    assert "slower" not in bench.live().verdict.text  # one answer says little
    for _ in range(5):
        bench.segment.histogram(families.TPOT, "m", other).observe(0.1)
    bench.ticks()
    live = bench.live()
    assert f"; {other} is " in live.verdict.text
    assert live.verdict.text.endswith(" times slower")
    assert [row.times_slower is not None for row in live.replicas] == [False, True]
    bench.ticks(WINDOW_PERIODS + 1)
    assert bench.live().verdict.text == "all 2 up"
    assert bench.live().events[0].text == f"{other}: as fast as its like again"


def test_trust_that_is_lost_and_regained(bench: Bench) -> None:
    one, other = bench.table.replicas
    for slot in (0, 1):
        bench.table.observe(slot, Probe("ok", ("m",)))

    def told(losses: int, *, proven: int = 0, lost: int = 0, forgiven: int = 0) -> None:
        process = bench.table.replicas[0].process
        news = ProofNews(
            one.slot, process, "m", losses,
            proven=proven, lost=lost, refuted=lost, forgiven=forgiven,
        )  # fmt: skip
        bench.table.proof(news)
        bench.ticks()

    told(0, proven=IdKind.CHAT)
    assert [row.ids for row in bench.live().replicas] == ["proven", "unproven"]
    told(0, lost=IdKind.CHAT)
    assert bench.live().replicas[0].ids == "other: chat"
    lost = f"{one.id}: makes other ids than the gateway: its prompts go as text"
    assert bench.live().events[0].text == lost
    told(1, forgiven=IdKind.CHAT)
    assert bench.live().replicas[0].ids == "unproven"
    assert bench.live().events[0].text == lost
    told(1, proven=IdKind.CHAT)
    assert bench.live().replicas[0].ids == "regained"
    assert bench.live().events[0].text == f"{one.id}: its ids are proven again"
    assert not any(other.id in row.text and "ids" in row.text for row in bench.live().events)


def test_ids_and_text(bench: Bench) -> None:
    for form, count in ((("ids", "proven"), 6), (("text", "fields"), 1), (("text", "off"), 1)):
        bench.segment.counter(families.FORWARDED, *form).inc(count)
    bench.ticks()
    live = bench.live()
    assert [(row.word, row.share) for row in live.forwarded] == [("ids", 0.75), ("text", 0.25)]
    assert [(row.word, row.share) for row in live.as_text] == [("fields", 0.5), ("off", 0.5)]


def test_loops_ladder_reasons_and_models(bench: Bench) -> None:
    segment = bench.segment
    segment.histogram(families.LOOP_STALL, "0").observe(0.04)
    for _ in range(99):
        segment.histogram(families.LOOP_STALL, "0").observe(0.0)
    segment.histogram(families.TOKENIZE, "threads", "m").observe(0.002)
    segment.histogram(families.TOKENIZE, "bail", "m").observe(0.0)
    segment.counter(families.BAILS, "too-long").inc()
    segment.counter(families.ROUTED, "affinity", "prefix").inc(3)
    segment.counter(families.ROUTED, "affinity", "cold").inc(1)
    segment.counter(families.OUTPUT_TOKENS, "m", "r:1").inc(50)
    segment.histogram(families.TTFT, "m", "r:1").observe(0.3)
    bench.ticks()
    live = bench.live()
    [worker] = live.workers
    assert worker.late_worst_s is live.now.late_worst_s is None  # no heartbeat was told of
    assert worker.late_p50_s is not None
    assert worker.late_p50_s <= 0.0001
    shares = {row.rung: row.share for row in live.rungs if row.share}
    assert shares == {"threads": 0.5, "bail": 0.5}
    assert [(row.word, row.share) for row in live.reasons] == [("prefix", 0.75), ("cold", 0.25)]
    assert [row.word for row in live.bails] == ["too-long"]
    [model] = live.models
    assert model.model == "m"
    assert model.ttft_p50_s is not None
    assert 0.25 <= model.ttft_p50_s <= 0.5


def test_the_worst_lateness_is_exact(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = StallLog()
    monkeypatch.setattr(GatewayState, "stalls", log)
    for _ in range(100):
        bench.segment.histogram(families.LOOP_STALL, "0").observe(0.04)
    log.beats(0, array.array("f", [0.03125, 0.0]).tobytes())
    bench.ticks()
    [worker] = bench.live().workers
    assert worker.late_worst_s == bench.live().now.late_worst_s == 0.03125
    # A bucket's bound is not above it.
    assert worker.late_p99_s == bench.live().now.late_p99_s == 0.03125
    log.beats(0, array.array("f", [0.0078125]).tobytes())
    bench.ticks()
    assert bench.live().series["late_worst_s"][-2:] == [0.03125, 0.007812]
    bench.ticks(WINDOW_PERIODS - 1)
    assert bench.live().now.late_worst_s == 0.0078125


def scrape(queried_tokens: float, hit_tokens: float) -> Probe:
    found = Scrape(
        running=2, kv_usage=0.5, block_tokens=16, cache_blocks=100,
        queried_tokens=queried_tokens, hit_tokens=hit_tokens,
    )  # fmt: skip
    return Probe("ok", ("m",), scrape=found)


def test_replicas(bench: Bench) -> None:
    bench.table.observe(0, scrape(1000, 400))
    bench.ticks()
    bench.table.observe(0, scrape(2000, 1200))
    bench.board.add(0, 3, 900)
    bench.ticks()
    live = bench.live()
    first, second = live.replicas
    assert (first.state, first.running, first.kv_usage, first.cache_tokens) == ("up", 2, 0.5, 1600)
    assert (first.in_flight, first.queued_tokens) == (3, 900)
    assert first.hit_rate == live.now.hit_rate == 0.8
    assert live.saved == SavedRow(tokens=1200)
    assert (second.state, second.hit_rate, second.cache_tokens) == ("down", None, None)
    # It was started anew, and what it counted before stays.
    bench.table.observe(0, scrape(100, 10))
    bench.ticks()
    assert bench.live().replicas[0].hit_rate == 810 / 1100
    assert bench.live().saved.tokens == 1210


@pytest.mark.parametrize(
    "reason", [LeftOut.REFUSED, LeftOut.EJECTED, LeftOut.STARTING, LeftOut.FULL]
)
def test_a_replica_that_is_up_and_left_out_says_why(bench: Bench, reason: LeftOut) -> None:
    bench.table.observe(0, scrape(1000, 400))
    gauge = bench.segment.gauge(families.LEFT_OUT, bench.table.replicas[0].id, reason.value)
    gauge.set(1.0)
    bench.ticks()
    assert bench.live().replicas[0].state == reason.value
    gauge.set(0.0)
    bench.ticks()
    assert bench.live().replicas[0].state == "up"


def test_decisions_the_newest_first(bench: Bench) -> None:
    rows = CandidateSample(0, 64, 1, 0, 10.0), CandidateSample(7, 0, 0, 0, 74.0)
    bench.watch.routed([sample("prefix", *rows)])
    bench.watch.routed([sample("cold", *rows)] * (DECISION_LIMIT + 5))
    bench.watch.routed([sample("prefix", *rows)])
    live = bench.live()
    assert len(live.decisions) == DECISION_LIMIT
    assert [row.number for row in live.decisions[:2]] == [DECISION_LIMIT + 7, DECISION_LIMIT + 6]
    newest = live.decisions[0]
    assert newest.replica == "127.0.0.1:9"
    assert newest.why.startswith("it holds 64 of 5,000 prompt tokens")
    # A replica that is not in the table any more.
    assert [row.replica for row in newest.candidates] == ["127.0.0.1:9", "slot 7"]


def test_settings_in_force(bench: Bench) -> None:
    rows = {row.path: row for row in bench.live().settings}
    assert (rows["routing.alpha"].value, rows["routing.alpha"].is_default) == ("0.2", False)
    assert (rows["server.port"].value, rows["server.port"].is_default) == ("8080", True)


def test_a_replica_whose_requests_wait_for_its_front_end(bench: Bench) -> None:
    def see(at: int, in_engine: int) -> None:
        count = 12.0 * at
        page = Scrape(
            running=in_engine, started_s=1.0, cpu_s=0.1 * at, at_s=float(at), first_tokens=count,
            first_token_s=1.6 * count, finished=count, engine_s=0.1 * count,
        )  # fmt: skip
        bench.table.observe(0, Probe("ok", ("m",), scrape=page))
        bench.ticks()

    bench.board.add(0, 32, 900)
    for at in range(WINDOW_LOOKS + 1):
        see(at, 0)
    live = bench.live()
    assert live.replicas[0].starved
    assert "127.0.0.1:9's front end is starved" in live.verdict.text
    assert live.verdict.level == "warn"
    assert "100% of its 32 requests wait" in live.events[0].text
    for at in range(WINDOW_LOOKS + 1, 2 * WINDOW_LOOKS):
        see(at, 32)
    live = bench.live()
    assert not live.replicas[0].starved
    assert live.events[0].text == "127.0.0.1:9: its front end keeps up again"

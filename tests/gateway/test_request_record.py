"""Lives: each is recorded once, as far as it came."""

import gc
import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.raw import DONE, STREAM_HEAD, TOKEN, USAGE, chunk
from tests.relay.test_relay_states import Scene
from tokenlane.gateway.plan import Plan
from tokenlane.gateway.recorder import Recorder
from tokenlane.gateway.request_record import RequestRecord, in_hand
from tokenlane.prompt import Prompt, Rung
from tokenlane.protocols.routes import UNSERVED
from tokenlane.routing.decision import Candidates, Decision, Query, Reason
from tokenlane.routing.recent import RecentWork
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.family import Family
from tokenlane.telemetry.metrics.segment import MetricsSegment, SegmentReader, create_segment
from tokenlane.telemetry.stalls.stall import InHand
from tokenlane.tokens.service import Outcome

Recording = tuple[Recorder, SegmentReader]


@pytest.fixture
def recording() -> Iterator[Recording]:
    descriptor = create_segment()
    recorder, reader = Recorder(MetricsSegment(descriptor)), SegmentReader(descriptor)
    os.close(descriptor)
    yield recorder, reader
    reader.close()


def value(reader: SegmentReader, family: Family, *labels: str) -> float:
    for sampled, given, cells in reader.samples():
        if sampled is family and given == labels:
            return sum(cells[1:]) if family.kind == "histogram" else cells[0]
    return 0.0


def life_of(**fields: Any) -> RequestRecord:
    record = RequestRecord(10.0)
    record.ended_s = 20.0
    planned = fields.keys() & {"tokens", "inspected_s", "tokens_s"}
    if planned:
        record.plan = Plan(UNSERVED, "", (), b"", "")
    for name, given in fields.items():
        setattr(record.plan if name in planned else record, name, given)
    return record


@pytest.mark.parametrize(
    ("fields", "stages"),
    [
        ({}, []),
        ({"read_s": 11.0}, [1.0]),
        ({"read_s": 11.0, "inspected_s": 13.0, "tokens_s": 14.0}, [1.0, 2.0, 1.0]),
        (
            {
                "read_s": 11.0,
                "inspected_s": 12.0,
                "tokens_s": 13.0,
                "routed_s": 14.0,
                "sent_s": 16.0,
            },
            [1.0, 1.0, 1.0, 1.0, 2.0],
        ),
    ],
)
def test_stages(fields: dict[str, float], stages: list[float]) -> None:
    assert list(life_of(**fields).stages()) == stages


def test_a_request_that_came_nowhere(recording: Recording) -> None:
    recorder, reader = recording
    recorder.record(life_of(outcome="gateway_error"), 404)
    recorder.record(life_of(outcome="client_gone", route="/health"), 499)
    assert value(reader, families.REQUESTS, families.OTHER, "404", "client_error", "other") == 1
    assert value(reader, families.REQUESTS, "/health", "499", "client_gone", "other") == 1
    assert value(reader, families.DURATION, families.OTHER) == 1
    assert value(reader, families.STAGE, families.STAGES[0]) == 0


def test_decisions_and_stages(recording: Recording) -> None:
    recorder, reader = recording
    recorder.record(life_of(decision=decision_among(1), read_s=11.0, inspected_s=12.0), 200)
    assert value(reader, families.ROUTED, "affinity", "prefix") == 1
    counts = [value(reader, families.STAGE, stage) for stage in families.STAGES]
    assert counts == [1, 1, 0, 0, 0, 0, 0]


PROMPT = Prompt((b"\1\0\0\0" * 5,), b"", 16, 5)
RUNGS = [
    Outcome(PROMPT, Rung.TOKEN_INPUT, "", 0.1, 0.2),
    Outcome(PROMPT, Rung.CACHE),
    Outcome(PROMPT, Rung.SHORT, "", 0.0, 0.2),
    Outcome(PROMPT, Rung.THREADS, "", 0.1, 0.2),
    Outcome(PROMPT, Rung.PROCESSES, "", 0.1, 0.2),
    Outcome(PROMPT, Rung.LOCAL, "", 0.1, 0.2),
    Outcome(PROMPT, Rung.REPLICA, "", 0.0, 0.2),
    Outcome(None, Rung.BAIL, "multimodal"),
    Outcome(None, Rung.BAIL, "no-tokenizer"),
]


@pytest.mark.parametrize("outcome", RUNGS, ids=lambda outcome: outcome.rung.value)
def test_rungs(recording: Recording, outcome: Outcome) -> None:
    recorder, reader = recording
    recorder.record(life_of(tokens=outcome, model="demo", replica="r:1"), 200)
    assert value(reader, families.TOKENIZE_QUEUE, outcome.rung.value) == 1
    assert value(reader, families.TOKENIZE, outcome.rung.value, "demo") == 1
    tokens = 5 if outcome.prompt else 0
    assert value(reader, families.PROMPT_TOKENS, "demo", "r:1") == tokens
    assert value(reader, families.BAILS, outcome.reason) == (1 if outcome.reason else 0)


@pytest.mark.parametrize(
    ("events", "usage", "means_s"),
    [
        (5, USAGE.replace(b":2}", b":41}"), [0.1]),  # tokens come several at a time
        (5, b"", [1.0]),
        (5, USAGE.replace(b":2}", b":null}"), [1.0]),
        (5, USAGE, [1.0]),  # there is an event for the end, too
        (1, USAGE.replace(b":2}", b":41}"), []),
    ],
    ids=["usage", "none", "null", "less", "at-once"],
)
async def test_time_per_output_token(
    recording: Recording, events: int, usage: bytes, means_s: list[float]
) -> None:
    recorder, reader = recording
    scene = Scene()
    scene.bytes(STREAM_HEAD + chunk(TOKEN) * events + chunk(usage + DONE) + chunk(b""))
    scene.relay.first_token_s, scene.relay.last_token_s = 11.0, 15.0
    recorder.record(life_of(relay=scene.relay, model="demo", replica="r:1"), 200)
    samples = {family: cells for family, _, cells in reader.samples()}
    assert samples[families.TPOT][0] == pytest.approx(sum(means_s))
    assert sum(samples[families.TPOT][1:]) == len(means_s)
    await scene.end()


def test_failures_and_retries(recording: Recording) -> None:
    recorder, reader = recording
    recorder.failed("demo", "r:1", "refused")
    recorder.retried("demo", "r:1", "refused")
    recorder.record(life_of(model="demo", replica="r:2"), 200)
    assert value(reader, families.UPSTREAM_FAILURES, "demo", "r:1", "refused") == 1
    assert value(reader, families.REPLICA_REQUESTS, "demo", "r:1") == 1
    assert value(reader, families.REPLICA_REQUESTS, "demo", "r:2") == 1
    assert value(reader, families.RETRIES, "refused") == 1


def test_samples_are_taken_only_while_wanted(recording: Recording) -> None:
    recorder, _ = recording
    record = life_of(
        model="m",
        tokens=Outcome(
            Prompt((b"1234" * 64,), b"12345678" * 4, 16, 64), Rung.THREADS, "", 1.0, 2.0
        ),
        decision=decision_among(3),
    )
    recorder.record(record, 200)
    assert recorder.take_samples(2) == []
    for status in (200, 503, 200):
        recorder.record(record, status)
    recorder.record(life_of(), 404)  # it was never routed
    first, second = recorder.take_samples(0)
    assert (first.status, second.status) == (200, 503)
    assert (first.model, first.policy, first.reason) == ("m", "affinity", "prefix")
    assert (first.slot, first.cached_tokens, first.prompt_tokens) == (12, 48, 64)
    assert (first.rung, first.tokenize_s, first.ttft_s) == ("threads", 3.0, None)
    assert first.duration_s == 10.0
    assert [row.slot for row in first.candidates] == [12, 11, 10]
    assert [row.cost for row in first.candidates] == [16.0, 40.0, 64.0]
    recorder.record(record, 200)
    assert recorder.take_samples(0) == []


def test_a_sample_of_a_large_fleet_is_small_and_has_the_chosen_one(recording: Recording) -> None:
    recorder, _ = recording
    recorder.take_samples(1)
    # A tie: what was chosen is not among the cheapest by position.
    recorder.record(life_of(decision=decision_among(200, cost=7.0, best=150)), 200)
    [sample] = recorder.take_samples(0)
    assert len(sample.candidates) == 8
    assert sample.candidate_count == 200
    assert sample.slot in {row.slot for row in sample.candidates}


def decision_among(count: int, *, cost: float | None = None, best: int | None = None) -> Decision:
    """Replicas from slot 10 on, each better than the one before."""
    places = range(count)
    among = Candidates(
        [10 + place for place in places],
        [24 * place for place in places],
        list(places),
        [0 for _ in places],
        RecentWork(Random(1)),
    )
    costs = [64.0 - 24 * place if cost is None else cost for place in places]
    query = Query(b"12345678", 16, 64, 64)
    chosen = count - 1 if best is None else best
    return Decision("affinity", Reason.PREFIX, query, among, costs, chosen)


def test_every_rung_is_measured() -> None:
    assert {outcome.rung for outcome in RUNGS} == set(Rung)


def test_requests_in_hand() -> None:
    records = {
        life_of(route="/v1/completions", read_s=11.0): b"first",
        **{life_of(): b"%d" % number for number in range(30)},
    }
    shown, count = in_hand(records)
    assert count == 31
    assert len(shown) == 20
    assert shown[0] == InHand("first", "/v1/completions", "inspect")
    assert shown[1] == InHand("0", "other", "read")


def test_requests_in_hand_are_read_while_others_come() -> None:
    """By another thread than the loop's, which may run whenever the interpreter lets go."""
    records = {life_of(): b"%d" % number for number in range(1000)}

    def comes(phase: str, _: object) -> None:
        if phase == "start":
            records[life_of()] = b"new"

    before = gc.get_threshold()
    gc.callbacks.append(comes)
    gc.set_threshold(10)
    try:
        for _ in range(20):
            assert in_hand(records)[1] >= 1000
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(comes)


def test_what_is_forgotten_begins_again(recording: Recording) -> None:
    recorder, reader = recording
    for _ in range(2):
        recorder.record(life_of(model="demo", replica="r:1"), 200)
        recorder.mismatch("demo", "r:1")
        assert value(reader, families.REPLICA_REQUESTS, "demo", "r:1") == 1
        assert value(reader, families.MISMATCHES, "demo", "r:1") == 1
        recorder.forget({("replica", "r:1")})
        assert value(reader, families.REPLICA_REQUESTS, "demo", "r:1") == 0
        recorder.record(life_of(model="demo", replica="r:2"), 200)
    assert value(reader, families.REPLICA_REQUESTS, "demo", "r:2") == 2

"""Plans are fixed in advance, and a request without an answer is not forgotten."""

import json
import random

import pytest

from bench.loads import generator, openloop, workload
from bench.loads.openloop import Call, Result


def answered(due_s: float, done_s: float, status: int = 200) -> Call:
    """A call with its whole answer."""
    return Call(due_s, due_s, done_s, done_s, status, whole=True)


def test_due_times_are_in_their_slots_and_repeatable() -> None:
    due_s = generator.evenly(100, 2.0, seed=7)
    assert len(due_s) == 200
    assert all(index / 100 <= at < (index + 1) / 100 for index, at in enumerate(due_s))
    assert due_s == generator.evenly(100, 2.0, seed=7)


def test_bursts_are_due_at_once() -> None:
    assert generator.in_bursts(2, 3) == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_the_unserved_count_with_the_time_they_were_waited_for() -> None:
    calls = [answered(0.0, 0.25), answered(1.0, 1.5, 503), Call(2.0, 2.0)]
    assert generator.latency(calls, end_s=12.0) == generator.Latency(
        count=3,
        failed=1,
        unanswered=1,
        p50_ms=10_000.0,
        p99_ms=11_000.0,
        max_ms=11_000.0,
    )


def test_a_refusal_is_no_quick_answer() -> None:
    calls = [answered(0.0, 0.2), *(answered(0.1, 0.101, 503) for _ in range(9))]
    seen = generator.latency(calls, end_s=5.0)
    assert (seen.p50_ms, seen.unserved) == (4_900.0, 9)
    assert generator.waited_s(Call(0.0, 0.0, 0.1, 0.2, 200), 5.0) == 5.0  # it was cut short


def test_failures_are_told_by_how_they_ended() -> None:
    cut = Call(0.0, 0.0, 0.1, 0.2, 200)
    calls = [answered(0.0, 0.1), answered(0.0, 0.1, 503), answered(0.0, 0.2, 503), cut, Call(0.0)]
    for code, call in zip(("", "503", "not_ready"), calls, strict=False):
        call.code = code
    told = "4 of 5 requests failed (503: 1, 503 not_ready: 1, 200 cut short: 1, no answer: 1)"
    assert generator.failure_remark(calls) == told
    assert generator.failure_remark(calls[:1]) is None


def test_silence_is_the_longest_wait_for_any_answer() -> None:
    assert generator.silence_s([answered(0.0, 0.1), answered(0.2, 3.1)], 9.0) == pytest.approx(3.0)
    assert generator.silence_s([answered(0.0, 0.1), Call(0.2)], 9.0) == pytest.approx(8.9)


def test_a_generator_at_its_limit_says_so() -> None:
    prompt = Result({"small": [answered(0.0, 0.1)]}, cpu_s=0.1, wall_s=1.0)
    late = Result({"small": [Call(0.0, 0.2, 0.3, 0.3, 200, whole=True)]}, cpu_s=0.1, wall_s=1.0)
    assert generator.limit_remark("x", prompt, ["small"]) is None
    assert "at its limit" in (generator.limit_remark("x", late, ["small"]) or "")


def test_bodies_have_their_size() -> None:
    for seed in random.Random(1).sample(range(10**8), 20):
        body = workload.sized(300, seed)
        assert len(body) == 300
        assert json.loads(body)["messages"][0]["content"].startswith(f"{seed:08d}")


def test_shared_prefixes_end_where_the_question_begins() -> None:
    before, after = workload.shared_prefix(12 * 1024, 4 * 1024, 3, 32)
    system, user = json.loads(before + b"0" * 16 + after)["messages"]
    assert (system["role"], len(system["content"])) == ("system", 12 * 1024)
    assert user["content"].startswith("0" * 16 + " ")
    assert len(user["content"]) == 4 * 1024
    assert workload.shared_prefix(12 * 1024, 4 * 1024, 3, 32) == (before, after)


def test_a_conversation_ends_with_a_question() -> None:
    talk = workload.conversation(100, 390_000, seed=1)
    assert len(talk) == 200
    assert [role for role, _ in talk[:3]] == ["system", "user", "assistant"]
    assert talk[-1][0] == "user"
    before, after = workload.numbered(workload.said(talk))
    assert 380_000 < len(before) + len(after) < 410_000
    assert len({content for _, content in talk}) == 200


def test_an_agents_body_ends_with_what_a_tool_answered() -> None:
    bodies = workload.last_calls(390_000)
    assert len(bodies) == 64
    before, after = bodies[-1]
    asked = json.loads(before + b"0" * 16 + after)
    *_, calling, last = asked["messages"]
    assert last["tool_call_id"] == calling["tool_calls"][0]["id"]
    assert last["content"].startswith("0" * 16 + " ")
    assert asked["tools"] == workload.TOOLS
    assert 400_000 < len(before) + len(after) < 470_000
    # The turn before is its beginning.
    assert before.startswith(bodies[-17][0][:400_000])


def test_an_error_tells_its_code() -> None:
    assert openloop.error_code(b'{"error":{"message":"later","code":"too_many_clients"}}') == (
        "too_many_clients"
    )
    assert openloop.error_code(b'{"error":{"code":503}}') == "503"
    assert [openloop.error_code(body) for body in (b"", b"<html>", b"[]", b'{"error":1}')] == [
        "", "", "", "",
    ]  # fmt: skip

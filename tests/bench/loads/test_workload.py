"""Bodies follow from their seeds."""

import pytest

from bench.loads import workload


def test_no_turn_of_a_conversation_is_like_another() -> None:
    talk = workload.Conversations()
    seen = [text for nonce in ("a", "b") for _, text in talk.messages(8_000, 8, nonce)]
    assert len(set(seen)) == 16
    assert sum(map(len, seen)) == pytest.approx(16_000, rel=0.02)
    assert workload.Conversations().body(8_000, 8, "a") == talk.body(8_000, 8, "a")
    assert len(workload.varied(5_000, 1)) == 5_000

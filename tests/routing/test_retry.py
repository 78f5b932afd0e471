"""The four phases: the table's promises, row by row and as a whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.routing.retry import TABLE, Again, Ending, Phase, Step, next_step

NEXT = Step(Ending.NEXT)

ROWS = [
    # phase, happened, attempts, left, retry_unanswered, step
    (Phase.UNSENT, "refused", 1, 1, False, NEXT),
    (Phase.UNSENT, "connect_timeout", 2, 1, False, NEXT),
    (Phase.UNSENT, "unreachable", 1, 1, False, NEXT),
    (Phase.UNSENT, "refused", 1, 0, False, Step(Ending.ERROR, 503, 1)),
    (Phase.UNSENT, "refused", 2, 0, False, Step(Ending.ERROR, 503, 1, False)),
    (Phase.UNSENT, "refused", 3, 1, False, Step(Ending.ERROR, 503, 1, False)),
    (Phase.SENT, "closed", 1, 1, False, Step(Ending.ERROR, 502)),
    (Phase.SENT, "closed", 1, 1, True, NEXT),
    (Phase.SENT, "reset", 3, 1, True, Step(Ending.ERROR, 502, None, False)),
    (Phase.SENT, "first_byte_timeout", 1, 1, False, Step(Ending.ERROR, 504)),
    (Phase.SENT, "chunk_timeout", 1, 1, True, Step(Ending.ERROR, 502)),
    (Phase.HEAD, "busy", 1, 1, False, NEXT),
    (Phase.HEAD, "busy", 1, 0, False, Step(Ending.PASS)),
    (Phase.HEAD, "busy", 2, 1, False, Step(Ending.PASS, should_retry=False)),
    (Phase.HEAD, "empty", 1, 3, False, NEXT),
    (Phase.HEAD, "elsewhere", 1, 1, False, NEXT),
    (Phase.HEAD, "elsewhere", 7, 1, False, NEXT),
    (Phase.HEAD, "elsewhere", 7, 0, False, Step(Ending.PASS, should_retry=False)),
    (Phase.HEAD, "reset", 1, 3, True, Step(Ending.ERROR, 502)),
    (Phase.HEAD, "chunk_timeout", 1, 3, True, Step(Ending.ERROR, 504)),
    (Phase.RELAYED, "reset", 1, 3, True, Step(Ending.BREAK)),
    (Phase.RELAYED, "truncated", 2, 3, True, Step(Ending.BREAK)),
    (Phase.RELAYED, "something new", 1, 3, True, Step(Ending.BREAK)),
]


@pytest.mark.row("U7")
@pytest.mark.parametrize(
    ("phase", "happened", "attempts", "left", "unanswered", "step"),
    ROWS,
    ids=["-".join(map(str, row[:5])) for row in ROWS],
)
def test_rows(
    phase: Phase, happened: str, attempts: int, left: int, unanswered: bool, step: Step
) -> None:
    assert step == next_step(
        phase,
        happened,
        attempts=attempts,
        candidates_left=left,
        retry_limit_count=2,
        retry_unanswered=unanswered,
    )


HAPPENED = st.sampled_from(sorted({happened for _, happened in TABLE})) | st.text(max_size=5)


@pytest.mark.row("U7")
@given(
    st.sampled_from(Phase), HAPPENED, st.integers(1, 9), st.integers(0, 9), st.integers(0, 5),
    st.booleans(),
)  # fmt: skip
def test_promises(
    phase: Phase, happened: str, attempts: int, left: int, limit: int, unanswered: bool
) -> None:
    step = next_step(
        phase,
        happened,
        attempts=attempts,
        candidates_left=left,
        retry_limit_count=limit,
        retry_unanswered=unanswered,
    )
    if step.ending is Ending.NEXT:
        assert left > 0
        assert phase is not Phase.RELAYED
        if happened == "elsewhere" and phase is Phase.HEAD:
            return
        assert attempts <= limit
        if phase is Phase.SENT:
            assert unanswered
        if phase is Phase.HEAD:
            assert happened in {"busy", "empty"}
            assert attempts == 1
    if step.ending is Ending.ERROR:
        assert step.status in {502, 503, 504}
        assert (step.status == 503) == (step.retry_after_s is not None)
    if phase is Phase.RELAYED:
        assert step == Step(Ending.BREAK)
    assert not step.should_retry


def test_only_a_silent_replica_is_a_matter_of_taste() -> None:
    asked = {phase for (phase, _), rule in TABLE.items() if rule.again is Again.ASKED}
    assert asked == {Phase.SENT}

"""Gaps, replays and restarts: whatever is dropped, what is applied is in order, once, or lost."""

from hypothesis import example, given
from hypothesis import strategies as st

from tokenlane.control.kv_events.sequence import (
    WAITING_LIMIT_BYTES,
    Action,
    Apply,
    Ask,
    Lost,
    MessageSequence,
    Restarted,
)


def body(number: int) -> bytes:
    return b"%d" % number


def test_a_whole_stream_needs_no_replay() -> None:
    sequence = MessageSequence(can_replay=True)
    actions = [action for n in range(5) for action in sequence.live(n, body(n))]
    assert actions == [Apply(body(n)) for n in range(5)]


def test_who_comes_late_asks_for_the_beginning() -> None:
    sequence = MessageSequence(can_replay=True)
    (question,) = sequence.ask()
    assert question == Ask(0, 1)
    assert sequence.live(3, body(3)) == []
    assert sequence.replayed(1, 0, body(0)) == [Apply(body(0))]
    assert [sequence.replayed(1, n, body(n)) for n in (1, 2, 3)][-1] == [Apply(body(3))]
    assert sequence.ended(1) == []  # what waited came with the replay
    assert sequence.live(4, body(4)) == [Apply(body(4))]


def test_a_gap_is_asked_for_and_closed() -> None:
    sequence = MessageSequence(can_replay=True)
    sequence.live(0, body(0))
    assert sequence.live(3, body(3)) == [Ask(0, 1)]
    assert sequence.live(4, body(4)) == []
    assert sequence.replayed(1, 0, body(0)) == []  # the last one known
    assert sequence.replayed(1, 1, body(1)) == [Apply(body(1))]
    assert sequence.replayed(1, 2, body(2)) == [Apply(body(2))]
    assert sequence.ended(1) == [Apply(body(3)), Apply(body(4))]
    assert sequence.gaps == 1


def test_what_waits_for_a_replay_is_bounded_by_its_bytes() -> None:
    sequence = MessageSequence(can_replay=True)
    assert sequence.ask() == [Ask(0, 1)]
    large = bytes(WAITING_LIMIT_BYTES // 2)
    assert sequence.live(0, large) == sequence.live(1, large) == []
    assert sequence.live(2, b"1") == [Apply(large), Apply(large), Apply(b"1")]
    assert sequence.replayed(1, 0, large) == []
    assert sequence.live(4, b"2") == [Ask(2, 2)]  # there is room again


def test_without_replay_a_gap_is_a_loss() -> None:
    sequence = MessageSequence(can_replay=False)
    assert sequence.ask() == []
    assert sequence.live(2, body(2)) == [Lost(2), Apply(body(2))]


def test_a_buffer_that_does_not_reach_back_is_a_loss() -> None:
    sequence = MessageSequence(can_replay=True)
    sequence.live(0, body(0))
    sequence.live(9, body(9))
    assert sequence.replayed(1, 5, body(5)) == [Lost(4), Apply(body(5))]


def test_no_answer_is_a_loss_and_a_late_one_is_not_mixed_in() -> None:
    sequence = MessageSequence(can_replay=True)
    sequence.live(0, body(0))
    assert sequence.live(2, body(2)) == [Ask(0, 1)]
    assert sequence.failed(1) == [Lost(1), Apply(body(2))]
    assert sequence.replayed(1, 1, body(1)) == []
    assert sequence.ended(1) == []


def test_numbers_that_begin_again_are_a_restart() -> None:
    sequence = MessageSequence(can_replay=True)
    for n in range(4):
        sequence.live(n, body(n))
    assert sequence.live(0, body(0)) == [Restarted(), Apply(body(0))]
    assert sequence.live(1, body(1)) == [Apply(body(1))]


def test_who_goes_on_where_another_is_asks_for_what_came_since() -> None:
    first, second = MessageSequence(can_replay=True), MessageSequence(can_replay=True)
    for n in range(5):
        first.live(n, body(n))
    second.resume(first.position)
    assert second.ask() == [Ask(4, 1)]
    assert second.live(6, body(6)) == []
    assert second.replayed(1, 4, body(4)) == []  # the same publisher
    assert second.replayed(1, 5, body(5)) == [Apply(body(5))]
    assert second.ended(1) == [Apply(body(6))]
    for older in (6, 3):  # numbers that begin again are a restart all the same
        third = MessageSequence(can_replay=True)
        third.resume(second.position)
        assert third.live(older, body(older))[0] == Restarted()


def test_who_goes_on_finds_out_another_publisher() -> None:
    for answer in ([(4, b"other")], []):
        sequence = MessageSequence(can_replay=True)
        known = MessageSequence(can_replay=True)
        for n in range(5):
            known.live(n, body(n))
        sequence.resume(known.position)
        sequence.ask()
        actions = [action for n, said in answer for action in sequence.replayed(1, n, said)]
        assert (actions or sequence.ended(1)) == [Restarted(), Ask(0, 2)]


def test_another_publisher_with_the_same_numbers_is_found_out() -> None:
    sequence = MessageSequence(can_replay=True)
    for n in range(3):
        sequence.live(n, body(n))
    (question,) = sequence.ask()
    assert question == Ask(2, 1)
    assert sequence.replayed(1, 2, b"other") == [Restarted(), Ask(0, 2)]
    assert sequence.replayed(1, 3, b"late") == []
    assert sequence.replayed(2, 0, b"new") == [Apply(b"new")]
    assert sequence.ended(2) == []


def test_another_publisher_is_found_out_after_a_question_without_an_answer() -> None:
    sequence = MessageSequence(can_replay=True)
    for n in range(3):
        sequence.live(n, body(n))
    sequence.ask()
    assert sequence.live(3, b"other 3") == []
    assert sequence.failed(1) == [Apply(b"other 3")]
    assert sequence.ask() == [Ask(2, 2)]
    assert sequence.replayed(2, 2, b"other 2") == [Restarted(), Ask(0, 3)]


def test_an_answer_from_before_what_was_asked_for_is_another_publisher_s() -> None:
    sequence = MessageSequence(can_replay=True)
    for n in range(3):
        sequence.live(n, body(n))
    sequence.ask()
    assert sequence.replayed(1, 0, b"other") == [Restarted(), Ask(0, 2)]


def test_an_answer_that_shows_no_message_that_is_known_is_a_loss() -> None:
    sequence = MessageSequence(can_replay=True)
    for n in range(3):
        sequence.live(n, body(n))
    sequence.ask()
    assert sequence.replayed(1, 3, body(3)) == [Lost(0), Apply(body(3))]
    assert sequence.replayed(1, 4, body(4)) == [Apply(body(4))]
    assert sequence.ended(1) == []


def test_a_publisher_without_the_last_message_is_another_one() -> None:
    sequence = MessageSequence(can_replay=True)
    for n in range(3):
        sequence.live(n, body(n))
    sequence.ask()
    assert sequence.ended(1) == [Restarted(), Ask(0, 2)]
    assert sequence.ended(2) == []
    assert sequence.live(0, body(0)) == [Apply(body(0))]


def test_a_loss_during_the_replay_is_asked_for_again() -> None:
    sequence = MessageSequence(can_replay=True)
    sequence.live(0, body(0))
    sequence.live(2, body(2))
    sequence.live(5, body(5))
    sequence.replayed(1, 1, body(1))
    sequence.replayed(1, 2, body(2))
    assert sequence.ended(1) == [Ask(2, 2)]
    for n in (2, 3, 4):
        sequence.replayed(2, n, body(n))
    assert sequence.ended(2) == [Apply(body(5))]


def test_a_replay_that_breaks_off_is_asked_on_while_it_brings_something() -> None:
    sequence = MessageSequence(can_replay=True)
    sequence.ask()
    assert sequence.live(5, body(5)) == []
    sequence.replayed(1, 0, body(0))
    sequence.replayed(1, 1, body(1))
    assert sequence.failed(1) == [Ask(1, 2)]
    assert sequence.replayed(2, 1, body(1)) == []
    assert sequence.failed(2) == [Lost(3), Apply(body(5))]


def test_a_hole_in_a_replay_is_asked_for() -> None:
    sequence = MessageSequence(can_replay=True)
    sequence.ask()
    sequence.replayed(1, 0, body(0))
    assert sequence.replayed(1, 3, body(3)) == [Ask(0, 2)]
    assert sequence.replayed(1, 4, body(4)) == []
    for n in range(5):
        sequence.replayed(2, n, body(n))
    assert sequence.ended(2) == []
    assert sequence.live(5, body(5)) == [Apply(body(5))]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 70),
    st.booleans(),
    st.integers(2, 40),
    st.integers(3, 50),
)
@example([(False, False), (True, False), (False, False), (True, False)], 4, True, 4, 3)
def test_whatever_is_dropped_the_applied_are_in_order_and_gaps_are_told(
    fates: list[tuple[bool, bool]], kept: int, answers: bool, room: int, hole: int
) -> None:
    """Per message: whether it is dropped, whether a question is answered before it. room: messages
    of an answer before it breaks off; hole: the one of them that is dropped."""
    sequence = MessageSequence(can_replay=True)
    sent: list[bytes] = []
    seen: list[int | None] = []  # None: a loss was told
    question: list[Ask] = []

    def do(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Apply):
                seen.append(int(action.payload))
            elif isinstance(action, Ask):
                question.append(action)
            elif isinstance(action, Lost):
                seen.append(None)

    def answer() -> None:
        while question:
            asked = question.pop()
            if not answers:
                do(sequence.failed(asked.number))
                continue
            first = max(asked.start, len(sent) - kept)
            told = range(first, len(sent))
            for at, number in enumerate(told[:room]):
                if at != hole:
                    do(sequence.replayed(asked.number, number, sent[number]))
            if len(told) <= room:
                do(sequence.ended(asked.number))
            else:
                do(sequence.failed(asked.number))

    for dropped, answered in fates:
        sent.append(body(len(sent)))
        if not dropped:
            do(sequence.live(len(sent) - 1, sent[-1]))
        if answered:
            answer()
    hole = -1  # a last message that nobody tells is not missed before another one comes
    do(sequence.ask())
    answer()
    numbers = [number for number in seen if number is not None]
    assert numbers == sorted(set(numbers))
    expected = 0
    for number in seen:
        if number is None:
            expected = -1
        elif expected < 0:
            expected = number + 1
        else:
            assert number == expected
            expected += 1
    if answers:
        assert numbers[-1:] == [len(sent) - 1]
    if answers and kept >= len(sent):
        assert numbers == list(range(len(sent)))

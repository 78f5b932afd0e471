"""A text trace becomes conversations; made ones grow as real ones do."""

import pytest

from bench.loads import conversations, text_trace
from bench.tools.processes import BenchError

INSTRUCTIONS = "Answer with one command. " * 20


def row(at: int, session: str, text: str, output: str) -> text_trace.Row:
    return text_trace.Row(at, text, session, output)


def test_a_text_trace_becomes_conversations() -> None:
    first, other = f"task a\n{INSTRUCTIONS}", f"task b\n{INSTRUCTIONS}"
    asked = conversations.from_rows([
        row(1, "s", first, "ls"), row(2, "t", other, "cat"), row(3, "s", f"{first}\nfile", "done"),
    ])  # fmt: skip
    system = asked[0].messages[0]
    assert system == ("system", f"\n{INSTRUCTIONS}")
    assert asked[0].messages == [system, ("user", "task a")]
    assert asked[1].messages == [system, ("user", "task b")]
    assert asked[2].messages == [
        system, ("user", "task a"), ("assistant", "ls"), ("user", "\nfile"),
    ]  # fmt: skip


def test_prompts_that_never_grow_are_no_conversation() -> None:
    with pytest.raises(BenchError, match="no conversation"):
        conversations.from_rows([row(1, "s", "a", ""), row(2, "t", "b", "")])


def test_made_conversations_grow_and_share_their_system_prompts() -> None:
    asked = conversations.made(sessions=6)
    assert asked == conversations.made(sessions=6)
    assert len(asked) == 6 * conversations.TURNS
    last: dict[str, list[tuple[str, str]]] = {}
    for one in asked:
        before = last.get(one.session, [])
        assert one.messages[: len(before)] == before
        assert len(one.messages) == len(before) + 2
        last[one.session] = one.messages
    assert len({one.messages[0] for one in asked}) <= conversations.SYSTEM_PROMPTS

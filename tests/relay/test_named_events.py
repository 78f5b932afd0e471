"""Named events seen in passing: the same facts however a stream is cut."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.relay import named_streams as events
from tests.relay.named_streams import (
    ABORTED,
    ERROR,
    FAILED,
    INCOMPLETE,
    PING,
    REFUSED,
    STREAMS,
    delta,
    words,
)
from tokenlane.protocols.dialects import Dialect
from tokenlane.relay.answer_fields import PromptTokensDetails, Usage
from tokenlane.relay.named_events import NamedEventScanner
from tokenlane.relay.usage import is_aborted, read_answer

USAGE = Usage(9, 2, PromptTokensDetails(8))
LIES = [
    delta('event: message_stop\ndata: {"type":"message_stop"}\n\n'),
    delta('"type":"error"'),
    words("event: response.completed\n\n"),
]


LINES = b'data: {"type":"ping"}\ndata: {"type":"error"}\nevent: error\ndata: {}\n\n'


def facts(dialect: Dialect, pieces: list[bytes]) -> dict[str, Any]:
    scanner = NamedEventScanner(dialect)
    for piece in pieces:
        scanner.feed(piece)
    return {
        "boundary": scanner.at_boundary,
        "failed": scanner.failed,
        "refused": scanner.refused,
        "done": scanner.done,
        "tokens": scanner.token_events,
        "seen": scanner.tokens_seen,
        "events": scanner.events,
        "usage": scanner.usage(),
    }


@pytest.mark.parametrize("dialect", STREAMS)
def test_a_whole_stream(dialect: Dialect) -> None:
    stream = STREAMS[dialect]
    assert facts(dialect, list(stream)) == {
        "boundary": True,
        "failed": False,
        "refused": False,
        "done": True,
        "tokens": 2,
        "seen": True,
        "events": len(stream),
        "usage": USAGE,
    }


ALL = [
    *itertools.chain(*STREAMS.values()),
    ABORTED,
    ERROR,
    REFUSED,
    FAILED,
    INCOMPLETE,
    PING,
    LINES,
    *LIES,
]


@given(
    st.sampled_from(list(STREAMS)),
    st.lists(st.sampled_from(ALL), max_size=8),
    st.lists(st.integers(0, 3000), max_size=8),
    st.booleans(),
)
def test_any_split_gives_the_same_facts(
    dialect: Dialect, stream: list[bytes], cuts: list[int], crlf: bool
) -> None:
    if crlf:
        stream = [one.replace(b"\n", b"\r\n") for one in stream]
    data = b"".join(stream)
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]
    assert facts(dialect, pieces) == facts(dialect, stream) == facts(dialect, [data])


@pytest.mark.parametrize("dialect", STREAMS)
def test_byte_by_byte(dialect: Dialect) -> None:
    data = b"".join(STREAMS[dialect])
    pieces = [data[at : at + 1] for at in range(len(data))]
    assert facts(dialect, pieces) == facts(dialect, [data])


@pytest.mark.parametrize("dialect", STREAMS)
@pytest.mark.parametrize("data", LIES, ids=range(len(LIES)))
def test_text_is_no_event(dialect: Dialect, data: bytes) -> None:
    seen = facts(dialect, [data])
    assert (seen["failed"], seen["done"], seen["events"]) == (False, False, 1)


@pytest.mark.parametrize(("data", "done"), [(ERROR, False), (FAILED, True)])
def test_failures(data: bytes, done: bool) -> None:
    seen = facts(Dialect.RESPONSES, [data])
    assert (seen["failed"], seen["done"], seen["seen"]) == (True, done, False)


@pytest.mark.parametrize("dialect", STREAMS)
def test_a_refusal_is_no_failure(dialect: Dialect) -> None:
    seen = facts(dialect, [REFUSED])
    assert (seen["refused"], seen["failed"], seen["seen"]) == (True, False, False)


@pytest.mark.parametrize("dialect", STREAMS)
def test_of_an_events_data_the_first_line_counts(dialect: Dialect) -> None:
    """A megabyte of them would be as many decodes."""
    seen = facts(dialect, [LINES])
    assert (seen["failed"], seen["events"]) == (False, 1)


def test_of_an_event_too_long_to_carry_the_data_is_not_looked_at() -> None:
    long = b'event: ping\ndata: %b\ndata: {"type":"error"}\n\n' % (b"x" * 300_000)
    seen = facts(Dialect.MESSAGES, [long[:-30], long[-30:]])
    assert (seen["failed"], seen["events"]) == (False, 1)


def test_a_name_without_data_names_nothing_behind_it() -> None:
    seen = facts(Dialect.MESSAGES, [b"event: error\n\n" + PING.partition(b"\n")[2]])
    assert (seen["failed"], seen["events"]) == (False, 1)


def test_an_abort_is_a_failure() -> None:
    seen = facts(Dialect.MESSAGES, [events.START, ABORTED, events.STOP])
    assert (seen["failed"], seen["done"], seen["seen"]) == (True, True, False)


def test_an_empty_message_is_none() -> None:
    """It generated its end: there is nothing to try again for."""
    assert facts(Dialect.MESSAGES, [events.START, events.LAST, events.STOP])["seen"]


@pytest.mark.parametrize(
    ("name", "status", "failed"),
    [
        ("completed", "completed", False),
        ("incomplete", "incomplete", False),
        ("completed", "cancelled", True),  # vLLM's abort
        ("failed", "failed", True),
        ("failed", None, True),
    ],
)
def test_so_is_an_empty_response(name: str, status: str | None, failed: bool) -> None:
    last = events.event(f"response.{name}", response={"status": status, "usage": None})
    seen = facts(Dialect.RESPONSES, [events.CREATED, last])
    assert (seen["failed"], seen["seen"], seen["done"]) == (failed, not failed, True)


def test_usage_that_is_told_in_two_parts() -> None:
    last = events.event("message_delta", delta={"stop_reason": "x"}, usage={"output_tokens": 2})
    seen = facts(Dialect.MESSAGES, [events.START, last, events.STOP])
    assert seen["usage"] == Usage(9, 2, PromptTokensDetails(None))


@pytest.mark.parametrize("size", [1000, 70_000, 1_000_000])
def test_an_end_of_any_length_is_one(size: int) -> None:
    """The last event of a response holds the whole of it."""
    long = {"status": "completed", "instructions": "x" * 600_000, "usage": {"input_tokens": 9}}
    data = b"".join((events.CREATED, words("a"), events.event("response.completed", response=long)))
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    seen = facts(Dialect.RESPONSES, pieces)
    assert (seen["done"], seen["boundary"], seen["events"]) == (True, True, 3)
    assert not facts(Dialect.RESPONSES, pieces[:-1])["done"]


def test_data_without_a_name_says_its_type() -> None:
    data = b"".join(STREAMS[Dialect.RESPONSES])
    bare = b"\n".join(line for line in data.split(b"\n") if not line.startswith(b"event:"))
    assert facts(Dialect.RESPONSES, [bare]) == facts(Dialect.RESPONSES, [data])


_MESSAGE = (
    b'{"type":"message","stop_reason":"x","usage":{"input_tokens":1,"output_tokens":2,'
    b'"cache_read_input_tokens":8,"cache_creation_input_tokens":0}}'
)
_RESPONSE = (
    b'{"status":"incomplete","usage":{"input_tokens":9,"output_tokens":2,'
    b'"input_tokens_details":{"cached_tokens":8}}}'
)
WHOLE: list[tuple[Dialect, bytes, Usage | None, bool]] = [
    (Dialect.MESSAGES, _MESSAGE, USAGE, False),
    (Dialect.MESSAGES, _MESSAGE.replace(b":1,", b":-10,"), None, False),
    (Dialect.MESSAGES, _MESSAGE.replace(b":2,", b":%b," % (b"9" * 400)), None, False),
    (Dialect.MESSAGES, b'{"type":"message","content":[]}', None, True),
    (Dialect.MESSAGES, b'{"type":"error","error":{"type":"x","message":"y"}}', None, False),
    (Dialect.RESPONSES, _RESPONSE, USAGE, False),
    (Dialect.RESPONSES, _RESPONSE.replace(b":9,", b":%b," % (b"9" * 400)), None, False),
    (Dialect.RESPONSES, _RESPONSE.replace(b":2,", b":-2,"), None, False),
    (Dialect.RESPONSES, b'{"status":"cancelled"}', None, True),
]


@pytest.mark.parametrize(("dialect", "body", "usage", "aborted"), WHOLE)
def test_whole_answers(dialect: Dialect, body: bytes, usage: Usage | None, aborted: bool) -> None:
    answer = read_answer(body, dialect)
    assert answer is not None
    assert (answer.usage, is_aborted(answer)) == (usage, aborted)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"usage":5}', b"[" * 10_000])
def test_what_is_no_answer(dialect: Dialect, body: bytes) -> None:
    assert read_answer(body, dialect) is None

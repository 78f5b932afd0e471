"""Events seen in passing: the same facts however a stream is cut."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.raw import ABORTED, DONE, EVENTS, LAST, ROLE, TOKEN, USAGE
from tokenlane.relay.answer_fields import Usage
from tokenlane.relay.sse import EventScanner
from tokenlane.relay.usage import cached_tokens_of, is_aborted, read_answer

ERROR = b'data: {"error":{"message":"dead","code":500}}\n\n'
SPACED_ERROR = b'data: {"error": {"message": "dead"}}\n\n'
REFUSAL = b'data: {"error":{"message":"no","code":400}}\n\n'
LINES = b'data: x\ndata: {"error":{"code":500}}\ndata: [DONE]\n\n'
COMMENT = b": keep-alive\n\n"
NULL_USAGE = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n'


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def said(content: str) -> bytes:
    """A token whose text tries to look like something else."""
    return event({"choices": [{"delta": {"content": content}, "finish_reason": None}]})


def ended(reason: str | None) -> bytes:
    """A choice of one event, without text."""
    delta = {"role": "assistant", "content": ""}
    return event({"choices": [{"delta": delta, "finish_reason": reason}]})


ABORTED_WORD = event({"choices": [{"delta": {"content": "a"}, "finish_reason": "abort"}]})
LIES = [
    said('"usage":{"prompt_tokens":99}'),
    said('data: {"error":{"message":"no"}}\n\n'),
    said('"finish_reason":"abort"'),
    said("abort"),
    said("usage"),
    said("data: [DONE]"),
    said('{"error": 1}'),
]


def facts(pieces: list[bytes]) -> dict[str, Any]:
    scanner = EventScanner()
    for piece in pieces:
        scanner.feed(piece)
    return {
        "boundary": scanner.at_boundary,
        "failed": scanner.failed,
        "refused": scanner.refused,
        "done": scanner.done,
        "tokens": scanner.token_events,
        "seen": scanner.tokens_seen,
        "usage": scanner.usage(),
    }


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


STREAMS = st.lists(
    st.sampled_from(
        [
            ROLE,
            TOKEN,
            LAST,
            USAGE,
            DONE,
            ERROR,
            REFUSAL,
            ABORTED,
            ABORTED_WORD,
            COMMENT,
            NULL_USAGE,
            LINES,
            *LIES,
        ]
    ),
    max_size=8,
)
CUTS = st.lists(st.integers(0, 2000), max_size=8)


@example([TOKEN, TOKEN, DONE, TOKEN], [len(TOKEN)], False)
@given(STREAMS, CUTS, st.booleans())
def test_any_split_gives_the_same_facts(events: list[bytes], cuts: list[int], crlf: bool) -> None:
    data = b"".join(events)
    if crlf:
        events = [one.replace(b"\n", b"\r\n") for one in events]
        data = data.replace(b"\n", b"\r\n")
    one_by_one = facts(events)
    assert facts(pieces_of(data, cuts)) == one_by_one
    assert facts([data]) == one_by_one


# Each begins and ends as its stream's other events do, and some have more than text in between.
TEXTS = [
    b"word",
    b"",
    b"abort",
    b"error",
    b"usage",
    rb"\"",
    rb"\\",
    rb"\"usage\":{}",
    rb"\n\ndata: y",
]
MORE = [
    b'a"},"finish_reason":"abort","delta":{"content":"',
    b'a"}}],"usage":{"prompt_tokens":9},"choices":[{"delta":{"content":"',
    b'a"}}]}\n\ndata: {"choices":[{"delta":{"content":"b',
    b'a"}}]}\n\ndata: {"error":{"code":500}}\n\ndata: {"choices":[{"delta":{"content":"b',
]
CHAT = [TOKEN.partition(b"word")[0], b'"},"finish_reason":null,"i":0}]}\n\n']
COMPLETION = [b'data: {"choices":[{"text":"', b'"}]}\n\n']
# As long as a chat's event, and half of it.
OTHER_END = b"a".join([CHAT[0], b'"},"finish_reason":"abort"   }]}\n\n'])
OTHER_BEGIN = b'data: {"error":{"code":500},'.ljust(len(CHAT[0])) + b"a" + CHAT[1]


@given(
    st.sampled_from([CHAT, COMPLETION]),
    st.lists(st.sampled_from(TEXTS + MORE)),
    st.sampled_from([b"", USAGE, ERROR, OTHER_END, OTHER_BEGIN, NULL_USAGE, DONE]),
)
@example(CHAT, [b"word"], OTHER_END)
@example(CHAT, [b"word"], OTHER_BEGIN)
@example(CHAT, [rb"\"", b""], b"")
def test_an_event_like_the_first_is_seen_as_one_that_is_not(
    ends: list[bytes], texts: list[bytes], last: bytes
) -> None:
    """One that is shorter than what the first has around its text is not like it, either."""
    events = [TOKEN, *[text.join(ends) for text in texts], last]
    assert facts(events) == facts([b"".join(events)])


def test_byte_by_byte() -> None:
    data = b"".join(EVENTS)
    seen = facts([data[at : at + 1] for at in range(len(data))])
    assert seen == facts(list(EVENTS))
    assert seen["usage"] == Usage(prompt_tokens=3, completion_tokens=2)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_boundaries(newline: bytes) -> None:
    scanner = EventScanner()
    assert scanner.at_boundary
    data = TOKEN.replace(b"\n", newline)
    for at in range(len(data)):
        scanner.feed(data[at : at + 1])
        assert scanner.at_boundary == (at == len(data) - 1)


@pytest.mark.parametrize("lie", LIES)
def test_text_is_never_taken_for_keys(lie: bytes) -> None:
    seen = facts([ROLE, lie, LAST])
    assert (seen["failed"], seen["usage"]) == (False, None)


@pytest.mark.parametrize("failure", [ERROR, SPACED_ERROR, ABORTED, ERROR.replace(b"\n", b"\r\n")])
def test_failures_are_seen(failure: bytes) -> None:
    assert facts([failure])["failed"]
    assert facts([ROLE, TOKEN, failure, DONE])["failed"]


def test_of_an_events_data_the_first_line_counts() -> None:
    """A megabyte of them would be as many decodes."""
    seen = facts([ROLE, TOKEN, LINES])
    assert (seen["failed"], seen["done"], seen["tokens"]) == (False, False, 2)


BLAMES: list[tuple[Any, bool]] = [
    ({"code": 400}, True),
    ({"code": 408}, True),
    ({"code": 429}, True),
    ({"code": 501}, True),
    ({"code": 500}, False),
    ({"code": 503}, False),
    ({"code": 0}, False),
    ({"code": -400}, False),
    ({"code": 10**30}, False),
    ({"code": [400]}, False),
    ({"code": 500, "type": "invalid_request_error"}, False),
    ({"type": "invalid_request_error", "code": None}, True),
    ({"type": "rate_limit_error", "code": "slow"}, True),
    ({"type": "overloaded_error"}, False),
    ({"type": "api_error"}, False),
    ({}, False),
    ("no", False),
    (None, False),
]


@pytest.mark.parametrize(("error", "refused"), BLAMES)
@pytest.mark.parametrize("begun", [[], [ROLE, TOKEN]])
def test_who_is_to_blame_for_an_error(error: Any, refused: bool, begun: list[bytes]) -> None:
    seen = facts([*begun, event({"error": error}), DONE])
    assert (seen["refused"], seen["failed"]) == (refused, not refused)


@pytest.mark.parametrize(
    ("events", "seen", "tokens"),
    [
        ([], False, 0),
        ([ROLE], False, 0),
        ([COMMENT, COMMENT], False, 0),
        ([ROLE, ABORTED], False, 0),
        ([ended(None)], False, 0),
        ([ended("abort")], False, 0),
        ([ended("stop")], True, 1),
        ([ended("length").replace(b": ", b":"), DONE], True, 1),
        ([ended("abort"), ended("stop")], True, 1),
        ([ROLE, TOKEN], True, 1),
        ([ROLE, ROLE, TOKEN, TOKEN], True, 2),
        ([ROLE, TOKEN, ABORTED], True, 2),
        ([TOKEN], True, 1),
        ([DONE], False, 0),
        ([USAGE, DONE], False, 0),
        (list(EVENTS), True, 3),
        ([TOKEN, NULL_USAGE, USAGE, DONE], True, 2),
    ],
)
def test_tokens(events: list[bytes], seen: bool, tokens: int) -> None:
    for cut in (events, [b"".join(events)]):
        found = facts(cut)
        assert (found["seen"], found["tokens"]) == (seen, tokens)


@pytest.mark.parametrize(
    ("events", "done"),
    [
        (EVENTS, True),
        ([DONE], True),
        ([TOKEN, TOKEN, DONE, COMMENT], True),
        ([TOKEN, DONE.replace(b"\n", b"\r\n")], True),
        ([TOKEN, TOKEN], False),
        ([TOKEN, *LIES], False),
        ([TOKEN, b"data: [DONE]\n"], False),
        ([TOKEN, b": [DONE]\n\n"], False),
    ],
)
def test_the_end_is_known_by_its_marker(events: list[bytes], done: bool) -> None:
    data = b"".join(events)
    for pieces in (events, [data], [data[at : at + 1] for at in range(len(data))]):
        assert facts(list(pieces))["done"] == done


def test_usage_is_the_last_that_was_said() -> None:
    first = event({"choices": [], "usage": {"prompt_tokens": 7}})
    full = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
    last = event({"choices": [], "usage": full})
    usage = facts([first, last, NULL_USAGE, DONE])["usage"]
    assert (usage.prompt_tokens, cached_tokens_of(usage)) == (9, 4)
    assert cached_tokens_of(Usage()) is None


@pytest.mark.parametrize("piece_bytes", [1000, 300_000, 10_000_000])
def test_a_huge_event_is_followed_to_its_boundary(piece_bytes: int) -> None:
    huge = said("x" * 1_000_000)
    data = ROLE + huge + USAGE
    scanner = EventScanner()
    for at in range(0, len(data), piece_bytes):
        scanner.feed(data[at : at + piece_bytes])
        assert len(scanner._carry) < 600_000
    assert scanner.usage() == Usage(prompt_tokens=3, completion_tokens=2)
    boundaries = [scanner.at_boundary]
    for piece in (huge[:-1], huge[-1:]):
        scanner.feed(piece)
        boundaries.append(scanner.at_boundary)
    assert boundaries == [True, False, True]


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"\n", b"\r", b"\n\n", b"data:"])))
def test_nothing_raises(pieces: list[bytes]) -> None:
    facts(pieces)


BROKEN = [
    b"",
    b"[]",
    b"\xff",
    b'{"usage":{"prompt_tokens":"many"}}',
    b'{"usage":{"prompt_tokens":1e400}}',
    b'{"choices":[{"finish_reason":"\xff"}]}',
    b'{"choices":[{"finish_reason":"\\ud800"}]}',
    b'{"choices":' + b"[" * 100_000,
]


@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
def test_an_answer_that_is_none(body: bytes) -> None:
    assert read_answer(body) is None
    facts([b"data: " + body + b"\n\n", b'data: {"usage": {' + body + b'"abort"\n\n'])


def test_an_answer() -> None:
    answer = read_answer(
        b'{"id":"x","choices":[{"finish_reason":"stop"},{"finish_reason":"abort"}],'
        b'"usage":{"prompt_tokens":5,"completion_tokens":0,"total_tokens":5}}'
    )
    assert answer is not None
    assert is_aborted(answer)
    assert answer.usage == Usage(prompt_tokens=5, completion_tokens=0)
    assert read_answer(b"{}") is not None


ABSURD = (b"9" * 400, b"-50", b"%d" % (1 << 53))


@pytest.mark.parametrize("count", ABSURD, ids=["endless", "negative", "too-many"])
@pytest.mark.parametrize(
    "usage",
    [
        b'{"prompt_tokens":%b}',
        b'{"prompt_tokens":5,"completion_tokens":%b}',
        b'{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":%b}}',
    ],
    ids=["prompt", "output", "cached"],
)
def test_counts_that_no_answer_can_have_are_no_usage(usage: bytes, count: bytes) -> None:
    """The rest of the answer is read nevertheless."""
    body = b'{"choices":[{"finish_reason":"abort"}],"usage":%b}' % (usage % count)
    answer = read_answer(body)
    assert answer is not None
    assert (answer.usage, is_aborted(answer)) == (None, True)
    seen = facts([b"data: " + body + b"\n\n"])
    assert (seen["usage"], seen["failed"]) == (None, True)

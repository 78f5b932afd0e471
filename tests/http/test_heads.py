"""Heads: remembered or parsed anew, the same head means the same."""

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.http.heads import BAD_HEADS, GOOD_HEADS, whole
from tokenlane.config.settings import ServerSettings
from tokenlane.errors import RequestError
from tokenlane.http import heads
from tokenlane.http.heads import RequestHead, RequestHeads, ResponseHead, parse_response


def fresh() -> RequestHeads:
    return RequestHeads(ServerSettings())


def facts(head: RequestHead | ResponseHead) -> dict[str, object]:
    """Everything a head says, but for the value and the place of its Content-Length."""
    # Compiled, its class has all of them; plain, it has them itself.
    every = {*dir(type(head)), *getattr(head, "__dict__", ())}
    names = [name for name in every if not name.startswith("_")]
    said = {name: getattr(head, name) for name in names}
    said["headers"] = [field for field in head.headers if field[0] != b"content-length"]
    return said


def outcome(parser: RequestHeads, head: bytes) -> object:
    try:
        parsed, length_bytes = parser.parse(head)
    except RequestError as error:
        return error.status, error.code
    return facts(parsed), length_bytes


LENGTH_NAMES = st.sampled_from(
    ["Content-Length", "content-length", "CONTENT-LENGTH", "Content-length"]
)
LENGTHS = st.sampled_from(["0", "5", "7", "12", "007", "-1", "5x", "", "9" * 18, "9" * 19])
SPACES = st.sampled_from(["", " ", "  ", "\t"])


@st.composite
def length_lines(draw: st.DrawFn) -> str:
    name, value = draw(LENGTH_NAMES), draw(LENGTHS)
    return f"{name}:{draw(SPACES)}{value}{draw(SPACES)}"


OTHER_LINES = st.sampled_from(
    [
        "Transfer-Encoding: chunked",
        "Connection: close",
        "Connection: keep-alive",
        "Expect: 100-continue",
        "X-Request-Id: one",
        "X-Request-Id: two",
        "A: content-length: 5",
        "Content-Type: text/event-stream",
    ]
)
LINES = st.lists(length_lines() | OTHER_LINES, max_size=3)


@given(st.lists(LINES, min_size=2, max_size=6))
def test_a_request_head_is_remembered_right(heads_lines: list[list[str]]) -> None:
    remembering = fresh()
    for lines in [*heads_lines, *heads_lines]:
        head = whole(*lines)
        assert outcome(remembering, head) == outcome(fresh(), head)


@given(
    st.lists(LINES, min_size=2, max_size=6),
    st.sampled_from(["POST", "HEAD"]),
    st.sampled_from(["HTTP/1.1 200 OK", "HTTP/1.1 204 No", "HTTP/1.0 200", "HTTP/1.1 103 Early"]),
)
@example([["content-length: 0"], ["content-length: 7"]], "POST", "HTTP/1.1 204 No")
def test_a_response_head_is_remembered_right(
    heads_lines: list[list[str]], method: str, start: str
) -> None:
    def read(head: bytes) -> object:
        try:
            parsed, length_bytes = parse_response(head, method)
        except ValueError:
            return None
        return facts(parsed), length_bytes

    responses = ["\r\n".join((start, *lines, "", "")) for lines in heads_lines]
    for head in [*responses, *responses]:
        remembered = read(head.encode())
        heads._responses = heads._Memo()
        assert remembered == read(head.encode())


def test_an_odd_spelling_of_the_length_is_no_empty_body() -> None:
    """The second request with such a head had no body, and its body was the next request."""
    parser = fresh()
    for spelling in ("CONTENT-LENGTH: 5", "Content-Length:  5", "Content-Length: 5 "):
        assert parser.parse(whole(spelling))[1] == 5
        assert parser.parse(whole(spelling))[1] == 5


def test_the_same_head_is_parsed_once() -> None:
    parser = fresh()
    one, first_bytes = parser.parse(whole("A: b", "Content-Length: 5"))
    other, second_bytes = parser.parse(whole("A: b", "Content-Length: 7"))
    assert one is other
    assert (first_bytes, second_bytes) == (5, 7)


@pytest.mark.parametrize("fields", [1, 30, 120])
@pytest.mark.parametrize("value", ["v" * 3, "v" * 20, "v" * 900])
def test_memory_is_bounded_and_counted_as_it_is(fields: int, value: str) -> None:
    """A head of many short fields takes ten times its bytes."""
    lines = [f"A-{number}: {value}" for number in range(fields)]
    parser, size_bytes = fresh(), 0
    parser.parse(whole("A: b"))
    tracemalloc.start()
    try:
        for number in range(3000):
            before_bytes = parser.size_bytes
            parser.parse(whole(f"A: {number}", *lines, "Content-Length: 1"))
            assert parser.size_bytes <= heads.MEMO_LIMIT_BYTES
            if parser.size_bytes < before_bytes or number > 500:
                break
        size_bytes = parser.size_bytes
        held_bytes = tracemalloc.get_traced_memory()[0]
        parser.configure(ServerSettings(), frozenset())
        freed_bytes = held_bytes - tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    if len(whole(*lines)) < 4000:
        assert freed_bytes / 1.3 < size_bytes < freed_bytes * 1.3
    else:
        assert size_bytes < 2000


def test_a_flood_of_heads_begins_anew() -> None:
    parser, fell = fresh(), 0
    for number in range(9000):
        before_bytes = parser.size_bytes
        parser.parse(whole(f"A: {number}"))
        fell += parser.size_bytes < before_bytes
        assert parser.size_bytes <= heads.MEMO_LIMIT_BYTES
    assert fell


@pytest.mark.parametrize(
    "head", [case[3] for case in BAD_HEADS], ids=[case[0] for case in BAD_HEADS]
)
def test_a_bad_head_is_refused_every_time(head: bytes) -> None:
    parser = fresh()
    first = outcome(parser, head)
    for case in GOOD_HEADS:
        parser.parse(case[4])
    assert outcome(parser, head) == first == outcome(fresh(), head)


def test_what_follows_from_a_request_head() -> None:
    lines = ("Expect: 100-continue", "X-Request-Id: one", "x-request-id: two", "Connection: close")
    head, _ = fresh().parse(whole(*lines, start="POST /a/b?c=d?e HTTP/1.1"))
    assert (head.method, head.path, head.query, head.minor) == ("POST", "/a/b", "c=d?e", 1)
    assert (head.expects_continue, head.request_id, head.keep_alive) == (True, b"one", False)
    old, _ = fresh().parse(whole("Expect: 100-continue", start="POST / HTTP/1.0"))
    assert (old.minor, old.expects_continue, old.keep_alive) == (0, False, False)


def response(*lines: str, start: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join((start, *lines, "", "")).encode("latin-1")


@pytest.mark.parametrize(
    ("head", "shape"),
    [
        # status, chunked, endless, stream, keep_alive, length
        (response("content-length: 5"), (200, False, False, False, True, 5)),
        (response("transfer-encoding: chunked"), (200, True, False, False, True, 0)),
        (response(), (200, False, True, False, False, 0)),
        (response("Connection: close", "content-length: 0"), (200, False, False, False, False, 0)),
        (response("content-length: 5", start="HTTP/1.0 200"), (200, False, False, False, False, 5)),
        (response("content-length: 5", start="HTTP/1.1 204"), (204, False, False, False, True, 0)),
        (response(start="HTTP/1.1 100 Continue"), (100, False, False, False, False, 0)),
        (response(start="HTTP/1.1 599 Odd"), (599, False, True, False, False, 0)),
        (
            response("Content-Type: Text/Event-Stream; charset=x", "transfer-encoding: chunked"),
            (200, True, False, True, True, 0),
        ),
        # Compressed events cannot be looked into: such an answer is passed on as any other.
        (
            response("content-type: text/event-stream", "content-encoding: x", "content-length: 9"),
            (200, False, False, False, True, 9),
        ),
    ],
)  # fmt: skip
def test_response_heads(head: bytes, shape: tuple[object, ...]) -> None:
    parsed, length_bytes = parse_response(head, "POST")
    said = parsed.status, parsed.chunked, parsed.endless, parsed.stream, parsed.keep_alive
    assert (*said, length_bytes) == shape


@pytest.mark.parametrize(
    "head",
    [
        b"\x00\x16garbage\r\n\r\n",
        b"<html>\r\n\r\n",
        response(start="HTTP/1.1 099 Odd"),
        response(start="HTTP/1.1 999 Odd"),
        response(start="HTTP/1.1 2000 Odd"),
        response(start="HTTP/2.0 200 OK"),
        response(start="HTTP/0.9 200 OK"),
        response("content-length: 5", "content-length: 5"),
        response("content-length: 5", "content-length: 6"),
        response("content-length: 5", "transfer-encoding: chunked"),
        response("transfer-encoding: gzip, chunked"),
        response("transfer-encoding: identity"),
        response("content-length: 0x5"),
        response("a: b\x00c"),
        response("a: b\rc"),
        response("a: b\nc"),
        response("a: b", " c"),
        response("a : b"),
        response("no colon"),
        b"HTTP/1.1 200 OK\nA: b\r\n\r\n",
        response("Connection: upgrade", "Upgrade: x", start="HTTP/1.1 101 Switching"),
    ],
    ids=lambda head: head[:60].decode("latin-1"),
)
def test_response_heads_that_mean_nothing_certain(head: bytes) -> None:
    for _ in range(2):
        with pytest.raises(ValueError):  # noqa: PT011 - the reason is for nobody
            parse_response(head, "POST")

"""Headers: what crosses the gateway, and heads as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.http.headers import (
    Field,
    forwarded_fields,
    lines,
    request_head,
    response_fields,
    status_line,
)

HOP_BY_HOP = (
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    "transfer-encoding upgrade http2-settings"
).split()


def fields(*pairs: str) -> list[Field]:
    split = (pair.partition(": ") for pair in pairs)
    return [(name.encode(), value.encode()) for name, _, value in split]


@pytest.mark.row("H14")
@pytest.mark.parametrize("name", HOP_BY_HOP)
def test_hop_by_hop_stays(name: str) -> None:
    assert forwarded_fields(fields(f"{name}: x", "a: b")) == b"a: b\r\n"
    assert response_fields(fields(f"{name}: x", "a: b")) == b"a: b\r\n"


@pytest.mark.row("H14", "S1")
@pytest.mark.parametrize(
    ("given_fields", "forwarded"),
    [
        (["connection: close, X-Mine", "x-mine: 1", "a: b"], b"a: b\r\n"),
        (["connection: x-one", "connection: x-two", "x-one: 1", "x-two: 2"], b""),
        # Nobody strips what the replica relies on by naming it.
        (["connection: authorization", "authorization: key"], b"authorization: key\r\n"),
        (["connection: Content-Type", "content-type: a/b"], b"content-type: a/b\r\n"),
        # What the gateway writes itself.
        (["host: x", "content-length: 5", "expect: 100-continue", "x-request-id: 7"], b""),
        (["x-tokenlane-replica: forged", "x-tokenlane-x: y"], b""),
        # Some servers fold underscores onto dashes.
        (["x_tokenlane_replica: forged", "content_length: 5", "a: b"], b"a: b\r\n"),
        # Everything else, in order, as often as it came.
        (["accept: */*", "c: a", "c: b", "x: "], b"accept: */*\r\nc: a\r\nc: b\r\nx: \r\n"),
        (["x-session-affinity: s", "trace: 0"], b"x-session-affinity: s\r\ntrace: 0\r\n"),
    ],
)  # fmt: skip
def test_requests(given_fields: list[str], forwarded: bytes) -> None:
    assert forwarded_fields(fields(*given_fields)) == forwarded


@pytest.mark.row("H14")
@pytest.mark.parametrize(
    ("given_fields", "passed"),
    [
        (["content-length: 5", "x-request-id: theirs", "a: b"], b"a: b\r\n"),
        (["connection: close, x-mine", "x-mine: 1"], b""),
        (["server: uvicorn", "date: now"], b"server: uvicorn\r\ndate: now\r\n"),
        (["set-cookie: a", "set-cookie: b"], b"set-cookie: a\r\nset-cookie: b\r\n"),
        (["connection: content-type", "content-type: a/b"], b"content-type: a/b\r\n"),
    ],
)  # fmt: skip
def test_responses(given_fields: list[str], passed: bytes) -> None:
    assert response_fields(fields(*given_fields)) == passed


NAMES = st.sampled_from(["a", "host", "connection", "te", "authorization", "x-b", "content-length"])


@given(st.lists(st.tuples(NAMES, st.sampled_from(["x", "x-b", "a, te", "authorization"]))))
def test_forwarding_twice_changes_nothing(pairs: list[tuple[str, str]]) -> None:
    once = forwarded_fields(fields(*(f"{name}: {value}" for name, value in pairs)))
    again = forwarded_fields(fields(*once.decode().split("\r\n")[:-1]))
    assert again == once


def test_request_head() -> None:
    head = request_head("POST", b"/v1/x?y", b"host: replica:1\r\n", b"a: b\r\n", b"id-1", 7)
    assert head == (
        b"POST /v1/x?y HTTP/1.1\r\nhost: replica:1\r\na: b\r\n"
        b"x-request-id: id-1\r\ncontent-length: 7\r\n\r\n"
    )


def test_lines() -> None:
    assert lines([]) == b""
    assert lines(fields("a: b", "c: d")) == b"a: b\r\nc: d\r\n"


def test_status_line() -> None:
    assert status_line(200) == b"HTTP/1.1 200 OK\r\n"
    assert status_line(599) == b"HTTP/1.1 599 Unknown\r\n"

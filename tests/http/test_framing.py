"""Framing: every head that is refused, with its status, and what the good ones mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.heads import BAD_HEADS, CANARY, GOOD_HEADS
from tokenlane.config.settings import ServerSettings
from tokenlane.errors import RequestError
from tokenlane.http.framing import (
    METHODS,
    BodyLength,
    body_length,
    check_head,
    keep_alive,
    origin_form,
    response_length,
)
from tokenlane.http.heads import RequestHeads


def heads() -> RequestHeads:
    return RequestHeads(ServerSettings())


@pytest.mark.parametrize(
    ("status", "code", "head"),
    [case[1:] for case in BAD_HEADS],
    ids=[case[0] for case in BAD_HEADS],
)
def test_bad_heads(status: int, code: str, head: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        heads().parse(head)
    assert refused.value.status == status
    assert refused.value.code == code
    assert refused.value.close
    assert CANARY.lower() not in refused.value.message.lower()


@pytest.mark.parametrize(
    ("name", "method", "target", "length", "head"), GOOD_HEADS, ids=lambda case: case
)
def test_good_heads(name: str, method: str, target: bytes, length: int | None, head: bytes) -> None:
    parsed, length_bytes = heads().parse(head)
    assert (parsed.method, parsed.target) == (method, target)
    assert (None if parsed.chunked else length_bytes) == length


@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_or_refused(noise: bytes) -> None:
    status = 200
    try:
        heads().parse(noise + b"\r\n\r\n")
    except RequestError as error:
        status = error.status
    assert status in {200, 400, 405, 414, 415, 417, 431, 501, 505}


PARTS = [b"GET", b"POST", b" ", b"/", b"HTTP/1.1", b"\r\n", b"\n", b"\r", b"Host", b":", b"x"]
PARTS += [b"Content-Length", b"Transfer-Encoding", b"chunked", b"5", b",", b"\x00", b"\t"]


@given(st.lists(st.sampled_from(PARTS), max_size=24))
def test_what_passes_has_one_reading(parts: list[bytes]) -> None:
    """A head that passes is what a strict reader of lines would see."""
    head = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(parts) + b"\r\n\r\n"
    head = head[: head.index(b"\r\n\r\n") + 4]
    try:
        parsed, length_bytes = heads().parse(head)
    except RequestError:
        return
    lines = head.split(b"\r\n")[1:-2]
    pairs = [line.split(b":", 1) for line in lines]
    assert parsed.headers == [(name.lower(), value.strip(b" \t")) for name, value in pairs]
    lengths = [value for name, value in parsed.headers if name == b"content-length"]
    codings = [value for name, value in parsed.headers if name == b"transfer-encoding"]
    assert len(lengths) + len(codings) <= 1
    assert parsed.chunked == bool(codings)
    assert length_bytes == (int(lengths[0]) if lengths else 0)


@given(st.sampled_from(sorted(METHODS)), st.integers(0, 1))
def test_check_head(method: bytes, minor: int) -> None:
    line = check_head(method + b" /x HTTP/1.%d\r\nHost: x\r\n\r\n" % minor)
    assert line == (method, b"/x", minor)


@pytest.mark.parametrize(
    ("target", "origin"),
    [(b"/a//b?c#d", b"/a//b?c#d"), (b"http://h", b"/"), (b"http://h:1?q", b"/?q")],
)
def test_origin_form(target: bytes, origin: bytes) -> None:
    assert origin_form(target) == origin


@pytest.mark.parametrize(
    ("minor", "connection", "kept"),
    [
        (1, [], True),
        (0, [], False),
        (1, [b"close"], False),
        (1, [b"Close"], False),
        (0, [b"keep-alive"], True),
        (0, [b"Keep-Alive, x"], True),
        (1, [b"x, close"], False),
        (1, [b"keep-alive, close"], False),
        (1, [b"keep-alive", b"close"], False),
        (0, [b"x", b"keep-alive"], True),
        (1, [b"closed"], True),
    ],
)
def test_keep_alive(minor: int, connection: list[bytes], kept: bool) -> None:
    assert keep_alive(minor, [(b"connection", value) for value in connection]) is kept


def fields(*pairs: str) -> list[tuple[bytes, bytes]]:
    split = (pair.encode().split(b": ") for pair in pairs)
    return [(name, value) for name, value in split]


@pytest.mark.parametrize(
    ("status", "method", "headers", "length"),
    [
        (200, "POST", fields("content-length: 7"), BodyLength(False, 7)),
        (200, "POST", fields("transfer-encoding: Chunked"), BodyLength(True, 0)),
        (200, "POST", [], None),
        (204, "POST", fields("content-length: 7"), BodyLength(False, 0)),
        (304, "POST", fields("transfer-encoding: chunked"), BodyLength(False, 0)),
        (200, "HEAD", fields("content-length: 7"), BodyLength(False, 0)),
    ],
)
def test_response_length(
    status: int, method: str, headers: list[tuple[bytes, bytes]], length: BodyLength | None
) -> None:
    assert response_length(status, method, headers) == length


@pytest.mark.parametrize(
    "headers",
    [
        fields("content-length: 7", "content-length: 7"),
        fields("content-length: 7", "transfer-encoding: chunked"),
        fields("transfer-encoding: gzip, chunked"),
        fields("transfer-encoding: chunked", "transfer-encoding: chunked"),
        fields("content-length: -7"),
        fields("content-length: 7, 7"),
    ],
)
def test_response_lengths_with_two_readings(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(ValueError, match="response"):
        response_length(200, "POST", headers)


def test_body_length_of_repeated_fields() -> None:
    """What the parser would refuse earlier is refused here too."""
    for headers in (
        fields("host: x", "content-length: 5", "content-length: 5"),
        fields("host: x", "content-length: 5", "transfer-encoding: chunked"),
        fields("host: x", "transfer-encoding: chunked", "transfer-encoding: chunked"),
        fields("host: x", "content-length: 5x"),
    ):
        with pytest.raises(RequestError) as refused:
            body_length(1, headers)
        assert refused.value.status == 400

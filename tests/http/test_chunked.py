"""Bodies as readers: however the bytes are cut, the payload and the end are the same."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.http.chunked import (
    LAST_CHUNK,
    BodyReader,
    ChunkedReader,
    ChunkError,
    EofReader,
    FixedReader,
    frame,
)

EXTENSIONS = st.sampled_from([b"", b";a", b";a=b", b' ; a="b c"', b"\t;x"])
TRAILERS = st.sampled_from([b"", b"A: b\r\n", b"Content-Length: 5\r\nB:\r\n", b"X: \xff\r\n"])
SIZES = st.sampled_from([b"%x", b"%X", b"00%x"])


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A valid chunked body and its payload."""
    payloads = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
    framed = [
        (draw(SIZES) % len(payload)) + draw(EXTENSIONS) + b"\r\n" + payload + b"\r\n"
        for payload in payloads
    ]
    end = draw(st.sampled_from([b"0", b"000"])) + draw(EXTENSIONS) + b"\r\n"
    return b"".join(framed) + end + draw(TRAILERS) + b"\r\n", b"".join(payloads)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def fed(reader: BodyReader, pieces: list[bytes]) -> tuple[bytes, int]:
    """The payload, and how many bytes the message had."""
    payload, consumed_bytes = b"", 0
    for piece in pieces:
        found, consumed = reader.feed(piece)
        payload += b"".join(found)
        consumed_bytes += consumed
        if consumed < len(piece):
            break
    return payload, consumed_bytes


@given(bodies(), st.lists(st.integers(0, 500), max_size=8), st.binary(max_size=20))
def test_any_split_of_a_chunked_body(
    body: tuple[bytes, bytes], cuts: list[int], surplus: bytes
) -> None:
    framed, payload = body
    reader = ChunkedReader()
    assert fed(reader, pieces_of(framed + surplus, cuts)) == (payload, len(framed))
    assert reader.done


@given(bodies(), st.integers(0, 500))
def test_a_cut_is_never_an_end(body: tuple[bytes, bytes], cut: int) -> None:
    framed, payload = body
    reader = ChunkedReader()
    found, consumed = reader.feed(framed[: cut % len(framed)])
    assert not reader.done
    assert consumed == cut % len(framed)
    assert payload.startswith(b"".join(found))


@given(bodies())
def test_an_edge_is_where_a_chunk_could_be_added(body: tuple[bytes, bytes]) -> None:
    framed, _ = body
    for cut in range(len(framed)):
        reader = ChunkedReader()
        begun = b"".join(reader.feed(framed[:cut])[0])
        if reader.at_edge:
            whole = ChunkedReader()
            added, _ = whole.feed(framed[:cut] + frame(b"more") + LAST_CHUNK)
            assert whole.done
            assert b"".join(added) == begun + b"more"


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
def test_frame(payloads: list[bytes]) -> None:
    framed = b"".join(map(frame, payloads)) + LAST_CHUNK
    assert fed(ChunkedReader(), [framed]) == (b"".join(payloads), len(framed))


MALFORMED = {
    "hex-prefix": b"0x1\r\na\r\n",
    "plus": b"+1\r\na\r\n",
    "minus": b"-1\r\na\r\n",
    "underscore": b"1_0\r\n",
    "empty-size": b"\r\n",
    "17-digits": b"00000000000000001\r\na\r\n",
    "leading-space": b" 1\r\na\r\n",
    "trailing-space": b"1 \r\na\r\n",
    "letter": b"g\r\n",
    "extension-without-semicolon": b"1 a\r\na\r\n",
    "extension-with-lf": b"1;a\nb\r\na\r\n",
    "extension-with-cr": b"1;a\rb\r\na\r\n",
    "extension-with-nul": b"1;\x00\r\na\r\n",
    "extension-quote-open": b'1;a="b\r\na\r\n',
    "extension-quote-escaped": b'1;a="b\\"\r\na\r\n',
    "extension-too-long": b"1;" + b"a" * 1100 + b"\r\na\r\n",
    "extension-endless": b"1;" + b"a" * 1100,
    "size-endless": b"0" * 1100,
    "lf-line": b"1\na\r\n",
    "cr-line": b"1\ra\r\n",
    "data-too-long": b"1\r\nab\r\n",
    "data-too-short": b"3\r\na\r\n0\r\n\r\n",
    "data-lf": b"1\r\na\n",
    "data-without-end": b"1\r\na0\r\n\r\n",
    "last-lf": b"0\n\n",
    "last-then-lf": b"0\r\n\n",
    "trailer-no-colon": b"0\r\nabc\r\n\r\n",
    "trailer-folded": b"0\r\nA: b\r\n c\r\n\r\n",
    "trailer-name": b"0\r\nA b: c\r\n\r\n",
    "trailer-control": b"0\r\nA: \x01\r\n\r\n",
    "trailer-line-too-long": b"0\r\nA: " + b"a" * 1100 + b"\r\n\r\n",
    "trailers-too-many": b"0\r\n" + b"A: " * 1 + b"a" * 900 + b"\r\n" + b"B: b\r\n" * 3000,
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("step", [1, 3, 10_000])
def test_malformed(body: bytes, step: int) -> None:
    reader = ChunkedReader()
    with pytest.raises(ChunkError):
        fed(reader, [body[at : at + step] for at in range(0, len(body), step)])
    assert not reader.done


def test_a_line_that_never_ends_is_refused_early() -> None:
    reader = ChunkedReader()
    reader.feed(b"1;")
    with pytest.raises(ChunkError):
        fed(reader, [b"aaaaaaa"] * 200)
    assert len(reader._carry) < 2048


@given(st.integers(0, 100), st.lists(st.integers(0, 150), max_size=6), st.binary(max_size=10))
def test_a_fixed_body(size: int, cuts: list[int], surplus: bytes) -> None:
    reader = FixedReader(size)
    assert reader.done == (size == 0)
    assert not reader.at_edge
    body = b"x" * size
    assert fed(reader, pieces_of(body + surplus, cuts)) == (body, size)
    assert reader.done
    assert reader.left_bytes == 0


def test_a_cut_fixed_body() -> None:
    reader = FixedReader(5)
    assert reader.feed(b"abc") == ([b"abc"], 3)
    assert (reader.done, reader.left_bytes) == (False, 2)


@given(st.lists(st.binary(max_size=10)))
def test_a_body_that_ends_with_its_connection(pieces: list[bytes]) -> None:
    reader = EofReader()
    assert fed(reader, pieces) == (b"".join(pieces), sum(map(len, pieces)))
    assert not reader.done
    assert reader.at_edge


def test_a_size_line_cut_behind_its_first_digit_is_not_read_as_that_digit() -> None:
    # The rest looked like `1` + the CRLF of the first chunk, and was read as a chunk of its own.
    whole = b"1\r\na\r\n" * 3 + b"1c"
    reader = ChunkedReader()
    assert reader.feed(whole) == ([b"a"] * 3, len(whole))
    assert not reader.at_edge
    assert reader.feed(b"\r\n" + b"b" * 28 + b"\r\n") == ([b"b" * 28], 32)
    assert reader.at_edge

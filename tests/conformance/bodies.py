"""Bodies: chunk syntax, extensions, trailers, lengths, and what follows them."""

from tests.conformance.corpus import BODY, HIDDEN, Case, chunked, request
from tests.http.heads import CANARY
from tests.raw import CHAT, chunk

END = b"0\r\n\r\n"
SIZE = b"%x" % len(BODY)
Q = CHAT.encode()


def _bad(row: str, name: str, *parts: bytes) -> Case:
    return Case(row, name, chunked(*parts) + HIDDEN, (400,), closes=True, differs="strict")


_BAD_SIZES: dict[str, bytes] = {
    "hex-prefix": b"0x" + SIZE,
    "plus": b"+" + SIZE,
    "minus": b"-" + SIZE,
    "underscore": SIZE[:1] + b"_" + SIZE[1:],
    "empty": b"",
    "space-before": b" " + SIZE,
    "tab-before": b"\t" + SIZE,
    "space-behind": SIZE + b" ",
    "tab-behind": SIZE + b"\t",
    "no-digit": b"g",
    "digit-and-letter": SIZE + b"g",
    "seventeen-digits": b"0" * 15 + SIZE,
    "overflow": b"1" + b"0" * 16,
    "fraction": SIZE + b".0",
    "list": SIZE + b"," + SIZE,
    "quoted": b'"' + SIZE + b'"',
    "vertical-tab": SIZE + b"\x0b",
    "nul": SIZE + b"\x00",
    "full-width": "５".encode(),
    "high-byte": b"\xb2" + SIZE,
    "canary": CANARY.encode(),
    "colon": SIZE + b":",
    "equals": SIZE + b"=1",
    "no-semicolon": SIZE + b" abc",
    "cr-cr-extension": SIZE + b"\r\r;abcd",
    "lf-spaces": SIZE + b" \n  ",
}
_BAD_CHUNKS: dict[str, bytes] = {
    "size-ends-lf": SIZE + b"\n" + BODY + b"\r\n" + END,
    "size-ends-cr": SIZE + b"\r" + BODY + b"\r\n" + END,
    "size-ends-crcr": SIZE + b"\r\r\n" + BODY + b"\r\n" + END,
    "data-ends-lf": SIZE + b"\r\n" + BODY + b"\n" + END,
    "data-ends-nothing": SIZE + b"\r\n" + BODY + END,
    "data-ends-lfcr": SIZE + b"\r\n" + BODY + b"\n\r" + END,
    "data-too-long": SIZE + b"\r\n" + BODY + b"x\r\n" + END,
    "data-too-short": SIZE + b"\r\n" + BODY[:-2] + b"\r\n" + END,
    "second-size-bad": chunk(BODY[:9]) + b"0x5\r\n" + BODY[9:] + b"\r\n" + END,
    "last-ends-lf": chunk(BODY) + b"0\n\r\n",
    "last-and-end-lf": chunk(BODY) + b"0\n\n",
    "end-lf": chunk(BODY) + b"0\r\n\n",
    "last-negative": chunk(BODY) + b"-0\r\n\r\n",
    "last-hex-prefix": chunk(BODY) + b"0x0\r\n\r\n",
    "last-space": chunk(BODY) + b"0 \r\n\r\n",
    "last-minus-hex": chunk(BODY) + b"-0x0\r\n\r\n",
    "last-spaces-before": chunk(BODY) + b"      0\r\n\r\n",
    "last-no-semicolon": chunk(BODY) + b"0 abc\r\n\r\n",
    "last-cr-digit": chunk(BODY) + b"1\r0\n",
    # Its longest prefix that is a number ends the body; all of it, as some read numbers, does not.
    "last-or-not": chunk(BODY) + b"0_%x\r\n\r\n" % (len(HIDDEN) + 4) + HIDDEN + b"\r\n\r\n" + END,
    "empty-line-first": b"\r\n" + chunk(BODY) + END,
    "empty-line-before-last": chunk(BODY) + b"\r\n" + END,
    "empty-line-for-last": chunk(BODY) + b"\r\n",
}
_BAD_EXTENSIONS: dict[str, bytes] = {
    "lf": b";a\nb",
    "lf-and-chunk": b";\n" + SIZE,
    "cr": b";a\rb",
    "cr-cr": b";a=b\r\r" + b"c" * len(BODY),
    "quote-open": b';a="b";c="d; e',
    "quote-open-escaped": b';a="b\\"',
    "nul": b";a\x00",
    "control": b";a\x1f",
    "delete": b";a\x7f",
    "long": b";" + b"a" * 1100,
    "long-value": b';a="' + b"b" * 2000 + b'"',
}
_BAD_TRAILERS: dict[str, bytes] = {
    "no-colon": b"abc\r\n",
    "canary": CANARY.encode() + b"\r\n",
    "empty-name": b": b\r\n",
    "space-in-name": b"a b: c\r\n",
    "space-before-colon": b"a : c\r\n",
    "nul": b"a: b\x00\r\n",
    "control": b"a: \x01\r\n",
    "lf": b"a: b\n",
    "cr": b"a: b\rc: d\r\n",
    "folded": b"a: b\r\n c\r\n",
    "space-first": b" a: b\r\n",
    "too-long": b"a: " + b"b" * 1100 + b"\r\n",
    "too-many": b"a: bcdefgh\r\n" * 1000,
    "request": HIDDEN,
}
_GOOD: dict[str, bytes] = {
    "one": chunk(BODY) + END,
    "two": chunk(BODY[:9]) + chunk(BODY[9:]) + END,
    "bytes": b"".join(chunk(BODY[at : at + 1]) for at in range(len(BODY))) + END,
    "upper-case": SIZE.upper() + b"\r\n" + BODY + b"\r\n" + END,
    "leading-zeros": b"000" + SIZE + b"\r\n" + BODY + b"\r\n" + b"000\r\n\r\n",
    "sixteen-digits": SIZE.zfill(16) + b"\r\n" + BODY + b"\r\n" + END,
}
_GOOD_EXTENSIONS: dict[str, bytes] = {
    "name": b";a",
    "value": b";a=b",
    "quoted": b';a="b;c"',
    "quoted-escapes": b';a="b \\"c\\"; \\\\d\\\\";e',
    "several": b";a=b;c=d",
    "empty": b";",
    "space-before": b" ;a",
    "space-inside": b"; a = b",
    "high-byte": b";a=\xe9",
    "hidden": b";" + b"POST / HTTP/1.1",
}
_GOOD_TRAILERS: dict[str, bytes] = {
    "one": b"a: b\r\n",
    "no-value": b"a:\r\n",
    "content-length": b"Content-Length: 5\r\n",
    "transfer-encoding": b"Transfer-Encoding: chunked\r\n",
    "host": b"Host: evil\r\n",
    "authorization": b"Authorization: Bearer x\r\n",
    "ours": b"x-tokenlane-replica: evil\r\n",
    "request-id": b"x-request-id: evil\r\n",
    "two": b"Vary: *\r\nA: b\r\n",
    "request-line": b"A:POST / HTTP/1.1\r\n",
}
WHOLE = request()
# Where a head ends too early: so many bytes behind the beginning of these.
_CUTS: dict[str, tuple[bytes, int]] = {
    "method": (b"POST", 1),
    "method-space": (b"POST", 5),
    "target-space": (b" HTTP", 1),
    "protocol": (b" HTTP", 5),
    "version": (b"HTTP/1.1", 8),
    "line-cr": (b"HTTP/1.1", 9),
    "line-end": (b"HTTP/1.1", 10),
    "name": (b"host: x", 3),
    "colon": (b"host: x", 5),
    "colon-space": (b"host: x", 6),
    "value": (b"host: x", 7),
    "field-cr": (b"host: x", 8),
    "field-end": (b"host: x", 9),
    "end-cr": (b"\r\n\r\n", 3),
}


def _spelled(length: bytes) -> bytes:
    """A chat with its Content-Length written like this."""
    return WHOLE.replace(b": %d" % len(BODY), length % len(BODY), 1)


_MERGED: dict[bytes, bytes | None] = {
    b"transfer-encoding": None,
    b"authorization": None,
    b"a": None,
    b"x-tokenlane-replica": None,
}

CASES: list[Case] = [
    *(
        _bad("H4", f"size-{name}", size + b"\r\n" + BODY + b"\r\n" + END)
        for name, size in _BAD_SIZES.items()
    ),
    *(_bad("H4", name, data) for name, data in _BAD_CHUNKS.items()),
    *(
        _bad("H5", f"extension-{name}", SIZE + extension + b"\r\n" + BODY + b"\r\n" + END)
        for name, extension in _BAD_EXTENSIONS.items()
    ),
    *(
        _bad("H5", f"trailer-{name}", chunk(BODY) + b"0\r\n" + trailer + b"\r\n")
        for name, trailer in _BAD_TRAILERS.items()
    ),
    *(Case("H4", f"good-{name}", chunked(data)) for name, data in _GOOD.items()),
    *(
        Case(
            "H5",
            f"good-extension-{name}",
            chunked(SIZE + extension + b"\r\n" + BODY + b"\r\n" + END),
        )
        for name, extension in _GOOD_EXTENSIONS.items()
    ),
    *(
        Case(
            "H5",
            f"good-trailer-{name}",
            chunked(chunk(BODY) + b"0\r\n" + trailer + b"\r\n"),
            fields=_MERGED,
        )
        for name, trailer in _GOOD_TRAILERS.items()
    ),
    # A body is data, whatever it looks like.
    Case("H4", "empty", chunked(END), (400,), differs="routes"),
    Case("H11", "body-is-a-request", request(body=HIDDEN), (400,), differs="routes"),
    Case("H11", "chunk-is-a-request", chunked(chunk(HIDDEN), END), (400,), differs="routes"),
    Case("H2", "length-zero", request(body=b""), (400,), differs="routes"),
    Case("H2", "length-zeros", request().replace(b"content-length: ", b"content-length: 000")),
    Case(
        "H2",
        "length-tabs",
        request().replace(b"content-length: ", b"content-length:\t"),
        differs="theirs",
    ),
    Case("H2", "length-spaces", _spelled(b":  %d "), differs="theirs"),
    Case("H2", "length-tabs-around", _spelled(b":\t%d\t  "), differs="theirs"),
    Case("H2", "length-then-fields", _spelled(b": 00%d\r\na: b"), fields={b"a": b"b"}),
    # What is too short waits, and what waits is ended.
    Case("T2", "body-short", request()[:-1], (408,), closes=True, waits=True),
    Case("T2", "no-last-chunk", chunked(chunk(BODY)), (408,), closes=True, waits=True),
    Case(
        "T2",
        "half-a-chunk",
        chunked(chunk(BODY)[:-9]),
        (408,),
        closes=True,
        waits=True,
    ),
    Case(
        "T2",
        "half-a-trailer",
        chunked(chunk(BODY), b"0\r\na: b"),
        (408,),
        closes=True,
        waits=True,
    ),
    # No rest could make this a head, so nobody waits for it.
    Case("H6", "cr-unfinished", WHOLE[:26] + b"HTTP/1.1\rhost: x", (400,), closes=True),
    Case("H6", "cr-unfinished-fields", b"POST / HTTP/1.1\r\nA: b\r\n\rc", (400,), closes=True),
    Case("T1", "half-a-head", request()[:30], (408,), closes=True, waits=True),
    Case("T1", "half-a-line", b"POST /v1", (408,), closes=True, waits=True),
    *(
        Case(
            "T1", f"cut-{name}", WHOLE[: WHOLE.index(behind) + at], (408,), closes=True, waits=True
        )
        for name, (behind, at) in _CUTS.items()
    ),
]

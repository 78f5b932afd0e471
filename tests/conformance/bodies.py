"""Bodies: chunk syntax, extensions, trailers, lengths, and what follows them."""

from tests.conformance.corpus import BODY, HIDDEN, Case, chunked, request
from tests.raw import CHAT, chunk
from tests.wire.heads import CANARY

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
    "empty-line-first": b"\r\n" + chunk(BODY) + END,
}
_BAD_EXTENSIONS: dict[str, bytes] = {
    "lf": b";a\nb",
    "lf-and-chunk": b";\n" + SIZE,
    "cr": b";a\rb",
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
}
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
    Case("T1", "half-a-head", request()[:30], (408,), closes=True, waits=True),
    Case("T1", "half-a-line", b"POST /v1", (408,), closes=True, waits=True),
]

"""Request heads, good and bad, as data: the parser's tests and the server's read the same table."""

CANARY = "Xq7canary"


def whole(*lines: str, start: str = "POST /v1/chat/completions HTTP/1.1") -> bytes:
    """A head with a good request line and a Host, and these lines."""
    return "\r\n".join((start, "Host: gateway", *lines, "", "")).encode("latin-1")


def begin(start: str, *lines: str) -> bytes:
    """A head with another request line."""
    return whole(*lines, start=start)


# name, status, code, head
BAD_HEADS: list[tuple[str, int, str, bytes]] = [
    # Two lengths (RFC 9112 6.1, 6.3)
    ("cl-te", 400, "ambiguous_length", whole("Content-Length: 5", "Transfer-Encoding: chunked")),
    ("te-cl", 400, "ambiguous_length", whole("Transfer-Encoding: chunked", "Content-Length: 5")),
    ("cl-twice", 400, "content_length", whole("Content-Length: 5", "Content-Length: 6")),
    ("cl-twice-same", 400, "content_length", whole("Content-Length: 5", "Content-Length: 5")),
    ("cl-list", 400, "content_length", whole("Content-Length: 5, 5")),
    ("cl-plus", 400, "content_length", whole("Content-Length: +5")),
    ("cl-minus", 400, "content_length", whole("Content-Length: -5")),
    ("cl-hex", 400, "content_length", whole("Content-Length: 0x5")),
    ("cl-underscore", 400, "content_length", whole("Content-Length: 1_0")),
    ("cl-empty", 400, "content_length", whole("Content-Length:")),
    ("cl-space-inside", 400, "content_length", whole("Content-Length: 1 0")),
    ("cl-overflow", 400, "content_length", whole("Content-Length: 99999999999999999999")),
    (
        "cl-18446744073709551621",
        400,
        "content_length",
        whole("Content-Length: 18446744073709551621"),
    ),
    ("cl-fraction", 400, "content_length", whole("Content-Length: 5.0")),
    ("cl-word", 400, "content_length", whole(f"Content-Length: {CANARY}")),
    # Codings
    ("te-comma-chunked", 501, "transfer_encoding", whole("Transfer-Encoding: ,chunked")),
    ("te-xchunked", 501, "transfer_encoding", whole("Transfer-Encoding: xchunked")),
    (
        "te-chunked-identity",
        501,
        "transfer_encoding",
        whole("Transfer-Encoding: chunked, identity"),
    ),
    ("te-gzip-chunked", 501, "transfer_encoding", whole("Transfer-Encoding: gzip, chunked")),
    ("te-chunked-chunked", 501, "transfer_encoding", whole("Transfer-Encoding: chunked, chunked")),
    ("te-identity", 501, "transfer_encoding", whole("Transfer-Encoding: identity")),
    ("te-empty", 501, "transfer_encoding", whole("Transfer-Encoding:")),
    ("te-quoted", 501, "transfer_encoding", whole('Transfer-Encoding: "chunked"')),
    ("te-vertical-tab", 400, "control_character", whole("Transfer-Encoding: \x0bchunked")),
    (
        "te-twice",
        400,
        "transfer_encoding",
        whole("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    ),
    ("te-space-colon", 400, "header_name", whole("Transfer-Encoding : chunked")),
    ("te-tab-colon", 400, "header_name", whole("Transfer-Encoding\t: chunked")),
    (
        "te-on-1.0",
        400,
        "transfer_encoding",
        begin("POST / HTTP/1.0", "Transfer-Encoding: chunked"),
    ),
    # Lines
    ("bare-lf-line", 400, "bare_line_feed", b"POST / HTTP/1.1\nHost: x\r\n\r\n"),
    ("bare-lf-field", 400, "bare_line_feed", b"POST / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n"),
    ("bare-cr", 400, "bare_line_feed", b"POST / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n"),
    ("nul-in-value", 400, "control_character", whole("A: b\x00c")),
    ("nul-in-name", 400, "control_character", whole("A\x00: b")),
    ("control-in-value", 400, "control_character", whole("A: b\x1fc")),
    ("del-in-value", 400, "control_character", whole("A: b\x7fc")),
    ("folded", 400, "folded_header", whole("A: b", " c")),
    ("folded-tab", 400, "folded_header", whole("A: b", "\tc")),
    ("space-before-field", 400, "folded_header", b"POST / HTTP/1.1\r\n Host: x\r\n\r\n"),
    ("no-colon", 400, "header_name", whole(CANARY)),
    ("empty-name", 400, "header_name", whole(": b")),
    ("space-in-name", 400, "header_name", whole("A b: c")),
    ("high-byte-in-name", 400, "header_name", whole("A\xe9: c")),
    ("bracket-in-name", 400, "header_name", whole(f"{CANARY}[]: c")),
    # Host (RFC 9112 3.2)
    ("host-missing", 400, "host", b"POST / HTTP/1.1\r\nA: b\r\n\r\n"),
    ("host-twice", 400, "host", whole("Host: gateway")),
    ("host-empty", 400, "host", b"POST / HTTP/1.1\r\nHost:\r\n\r\n"),
    ("host-userinfo", 400, "host", b"POST / HTTP/1.1\r\nHost: a@b\r\n\r\n"),
    ("host-path", 400, "host", b"POST / HTTP/1.1\r\nHost: a/b\r\n\r\n"),
    ("host-fragment", 400, "host", b"POST / HTTP/1.1\r\nHost: localhost:80/#@x\r\n\r\n"),
    ("host-port", 400, "host", b"POST / HTTP/1.1\r\nHost: a:99999\r\n\r\n"),
    ("host-port-word", 400, "host", b"POST / HTTP/1.1\r\nHost: a:x\r\n\r\n"),
    ("host-list", 400, "host", b"POST / HTTP/1.1\r\nHost: a b\r\n\r\n"),
    ("host-twice-on-1.0", 400, "host", begin("GET / HTTP/1.0", "Host: gateway")),
    # Versions and methods
    ("version-0.9", 505, "http_version", begin("GET / HTTP/0.9")),
    ("version-1.2", 505, "http_version", begin("GET / HTTP/1.2")),
    ("version-2.0", 505, "http_version", begin("GET / HTTP/2.0")),
    ("version-9.9", 505, "http_version", begin("GET / HTTP/9.9")),
    ("version-none", 400, "request_line", b"GET /\r\n\r\n"),
    ("version-long", 400, "request_line", begin("GET / HTTP/1.10")),
    ("version-lower", 400, "request_line", begin("GET / http/1.1")),
    ("preface", 505, "http_version", b"PRI * HTTP/2.0\r\n\r\n"),
    ("two-spaces", 400, "request_line", begin("GET  / HTTP/1.1")),
    ("tab", 400, "request_line", begin("GET\t/ HTTP/1.1")),
    ("space-in-target", 400, "request_line", begin("GET /a b HTTP/1.1")),
    ("space-at-end", 400, "request_line", begin("GET / HTTP/1.1 ")),
    ("high-byte-in-target", 400, "request_line", begin("GET /\xe9 HTTP/1.1")),
    ("nothing", 400, "request_line", b"\x16\x03\x01\r\n\r\n"),
    ("trace", 405, "method_not_allowed", begin("TRACE / HTTP/1.1")),
    ("connect", 405, "method_not_allowed", begin("CONNECT a:1 HTTP/1.1")),
    ("method-unknown", 501, "method_not_implemented", begin(f"{CANARY} / HTTP/1.1")),
    ("method-lower", 501, "method_not_implemented", begin("get / HTTP/1.1")),
    # Targets
    ("target-star", 400, "request_target", begin("OPTIONS * HTTP/1.1")),
    ("target-authority", 400, "request_target", begin("GET gateway:80 HTTP/1.1")),
    ("target-word", 400, "request_target", begin(f"GET {CANARY} HTTP/1.1")),
    ("target-scheme", 400, "request_target", begin("GET ftp://a/ HTTP/1.1")),
    ("target-userinfo", 400, "request_target", begin("GET http://a@b/ HTTP/1.1")),
    ("target-no-host", 400, "request_target", begin("GET http:///x HTTP/1.1")),
    ("target-long", 414, "target_too_long", begin(f"GET /{'a' * 8192} HTTP/1.1")),
    # Limits and what is not understood
    ("fields", 431, "headers_too_large", whole(*["A: b"] * 128)),
    ("expect", 417, "expectation", whole("Expect: coffee")),
    ("gzip", 415, "content_encoding", whole("Content-Encoding: gzip", "Content-Length: 5")),
]

# name, method, target, body length (None: chunked), head
GOOD_HEADS: list[tuple[str, str, bytes, int | None, bytes]] = [
    ("plain", "POST", b"/v1/chat/completions", 0, whole()),
    ("length", "POST", b"/v1/chat/completions", 5, whole("Content-Length: 5")),
    ("length-no-space", "POST", b"/v1/chat/completions", 5, whole("content-length:5")),
    ("length-spaces", "POST", b"/v1/chat/completions", 5, whole("Content-Length: \t 5 \t")),
    ("length-capitals", "POST", b"/v1/chat/completions", 5, whole("CONTENT-LENGTH: 5")),
    ("length-zeros", "POST", b"/v1/chat/completions", 5, whole("Content-Length: 005")),
    ("chunked", "POST", b"/v1/chat/completions", None, whole("Transfer-Encoding: chunked")),
    (
        "chunked-capitals",
        "POST",
        b"/v1/chat/completions",
        None,
        whole("TRANSFER-ENCODING: Chunked "),
    ),
    ("absolute", "GET", b"/a?b", 0, begin("GET http://other:80/a?b HTTP/1.1")),
    ("absolute-bare", "GET", b"/", 0, begin("GET HTTP://other HTTP/1.1")),
    ("absolute-query", "GET", b"/?b", 0, begin("GET https://[::1]:80?b HTTP/1.1")),
    ("no-host-on-1.0", "GET", b"/", 0, b"GET / HTTP/1.0\r\n\r\n"),
    ("host-v6", "GET", b"/", 0, b"GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n"),
    ("host-space", "GET", b"/", 0, b"GET / HTTP/1.1\r\nHost: x \r\n\r\n"),
    ("upgrade", "GET", b"/", 0, begin("GET / HTTP/1.1", "Upgrade: foo", "Connection: upgrade")),
    (
        "websocket",
        "POST",
        b"/",
        3,
        begin("POST / HTTP/1.1", "Upgrade: websocket", "Content-Length: 3"),
    ),
    (
        "expect",
        "POST",
        b"/",
        3,
        begin("POST / HTTP/1.1", "Expect: 100-Continue", "Content-Length: 3"),
    ),
    (
        "identity",
        "POST",
        b"/",
        3,
        begin("POST / HTTP/1.1", "Content-Encoding: identity", "Content-Length: 3"),
    ),
    ("high-bytes", "GET", b"/", 0, begin("GET / HTTP/1.1", "A: \xe9\xff")),
    ("empty-value", "GET", b"/", 0, begin("GET / HTTP/1.1", "A:")),
    ("many-fields", "GET", b"/", 0, begin("GET / HTTP/1.1", *["A: b"] * 127)),
    ("long-target", "GET", b"/" + b"a" * 8191, 0, begin(f"GET /{'a' * 8191} HTTP/1.1")),
]

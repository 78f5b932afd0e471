"""Targets, hosts, versions, limits, and fields that must not pass."""

from tests.conformance.corpus import BODY, HIDDEN, Case, request
from tests.http.heads import CANARY
from tests.raw import CHAT

Q = CHAT.encode()


def _line(target: str, version: str = "1.1", method: str = "POST") -> bytes:
    return request(start=f"{method} {target} HTTP/{version}")


def _passed(row: str, name: str, *lines: str, **fields: bytes | None) -> Case:
    named = {key.replace("_", "-").encode(): value for key, value in fields.items()}
    return Case(row, name, request(*lines), fields=named)


def _padded_head(size: int) -> bytes:
    """A chat whose head is so many bytes."""
    least = len(request("a: ")) - len(BODY)
    return request("a: " + "b" * (size - least))


def _padded_target(size: int) -> str:
    return CHAT + "?" + "q" * (size - len(CHAT) - 1)


_NOT_SERVED = {
    "dot-dot": f"/x/..{CHAT}",
    "dot": f"/.{CHAT}",
    "double-slash": f"/{CHAT}",
    "double-slash-inside": "/v1//chat/completions",
    "slash-behind": CHAT + "/",
    "semicolon": CHAT + ";a=b",
    "dot-dot-semicolon": f"/x/..;{CHAT}",
    "percent-dot": f"/x/%2e%2e{CHAT}",
    "percent-slash": "/v1%2fchat/completions",
    "percent-nul": CHAT + "%00",
    "percent-line": CHAT + "%0d%0aHost:%20evil",
    "fragment": CHAT + "#x",
    "capitals": CHAT.upper(),
    "backslash": CHAT.replace("/", "\\", 2).replace("\\", "/", 1),
    "authority-path": f"//evil{CHAT}",
    "admin": "/metrics",
    "canary": f"/{CANARY}",
    "percent-broken": CHAT + "%",
    "quotes": '/a_"b"?c="d"',
    "absolute": "http://evil:1234",
    "absolute-query": f"http://evil?a={CHAT}",
    "absolute-port-query": f"http://evil:1234?a={CHAT}",
}
_ABSOLUTE = {
    "other-host": f"http://evil{CHAT}",
    "other-port": f"http://x:1{CHAT}",
    "https": f"https://evil:443{CHAT}",
    "capitals": f"HTTP://EVIL{CHAT}",
    "ipv6": f"http://[::1]:80{CHAT}",
    "link-local": f"http://169.254.169.254{CHAT}",
}
_BAD_ABSOLUTE = {
    "user": f"http://a@evil{CHAT}",
    "port": f"http://evil:99999{CHAT}",
    "scheme": f"ftp://evil{CHAT}",
    "scheme-only": f"http:{CHAT}",
    "no-host": f"http://{CHAT}",
    "file": f"file://{CHAT}",
}
_HOSTS = {
    "tab": "x\ty", "comma-list": "x, y", "scheme": "http://x", "question": "x?", "hash": "x#",
    "backslash": "x\\y", "bracket": "[::1", "ipv6-port": "[::1]:x", "quoted": '"x"', "pipe": "x|y",
    "high-byte": "x\xe9", "canary": f"{CANARY}@x", "port-sign": "x:+80", "two-ports": "x:80:80",
}  # fmt: skip

CASES: list[Case] = [
    *(
        Case("H7", f"path-{name}", _line(target), (404,), seen=(), differs="routes")
        for name, target in _NOT_SERVED.items()
    ),
    *(
        Case("H7", f"absolute-{name}", _line(target), seen=((Q, BODY),), differs="target")
        for name, target in _ABSOLUTE.items()
    ),
    *(
        Case(
            "H7",
            f"absolute-bad-{name}",
            _line(target) + HIDDEN,
            (400,),
            closes=True,
            differs="strict",
        )
        for name, target in _BAD_ABSOLUTE.items()
    ),
    *(
        Case(
            "H7",
            f"host-field-{name}",
            request().replace(b"host: x", f"host: {host}".encode("latin-1")) + HIDDEN,
            (400,),
            closes=True,
            differs="strict",
        )
        for name, host in _HOSTS.items()
    ),
    Case("H7", "query", _line(f"{CHAT}?a=b&c"), seen=((Q + b"?a=b&c", BODY),)),
    Case(
        "H7",
        "query-odd",
        _line(f'{CHAT}?{{}}|^`"<>'),
        seen=((Q + b'?{}|^`"<>', BODY),),
        differs="strict",
    ),
    Case("H7", "query-twice", _line(f"{CHAT}?a=b?c"), seen=((Q + b"?a=b?c", BODY),)),
    Case("H7", "query-hidden", _line(f"{CHAT}?x=HTTP/1.1"), seen=((Q + b"?x=HTTP/1.1", BODY),)),
    Case("H7", "host-equals", request().replace(b"host: x", b"host: 0.0.0.0=80")),
    Case(
        "H7",
        "host-tab",
        request("a:").replace(b"host: x", b"hoSt:\tx"),
        fields={b"a": b""},
        differs="theirs",
    ),
    # Versions and methods
    Case("H9", "http-1.0", _line(CHAT, "1.0"), closes=True, differs="old"),
    Case("H9", "http-1.0-kept", request("connection: keep-alive", start=f"POST {CHAT} HTTP/1.0")),
    Case(
        "H9",
        "http-1.0-no-host",
        _line(CHAT, "1.0").replace(b"host: x\r\n", b""),
        closes=True,
        differs="old",
    ),
    *(
        Case(
            "H9",
            f"version-{version}",
            _line(CHAT, version) + HIDDEN,
            (status,),
            closes=True,
            differs="strict",
        )
        for version, status in (
            ("1.3", 505),
            ("3.0", 505),
            ("1", 400),
            ("1.", 400),
            (".1", 400),
            ("1.1x", 400),
            ("11", 400),
            ("1,1", 400),
            ("-1.1", 400),
        )
    ),
    *(
        Case(
            "H9",
            f"method-{name}",
            _line(CHAT, method=method) + HIDDEN,
            (501,),
            closes=True,
            differs="routes",
        )
        for name, method in {
            "purge": "PURGE",
            "propfind": "PROPFIND",
            "title": "Post",
            "odd": "P~ST",
            "long": "A" * 200,
            "m-search": "M-SEARCH",
            "space": "QUERY",
        }.items()
    ),
    *(
        Case(
            "H9",
            f"not-here-{method.lower()}",
            _line(CHAT, method=method),
            (405,),
            seen=(),
            differs="routes",
        )
        for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS")
    ),
    Case(
        "H9",
        "not-here-head",
        _line(CHAT, method="HEAD"),
        (405,),
        seen=(),
        method="HEAD",
        differs="routes",
    ),
    Case(
        "H9",
        "method-brackets",
        _line(CHAT, method="P[ST") + HIDDEN,
        (400,),
        closes=True,
        differs="strict",
    ),
    Case(
        "H9", "space-before-line", b" " + request() + HIDDEN, (400,), closes=True, differs="strict"
    ),
    Case("H9", "lf-before-line", b"\n" + request() + HIDDEN, (400,), closes=True, differs="strict"),
    Case(
        "H9",
        "tls-hello",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\r\n\r\n",
        (400,),
        closes=True,
        differs="strict",
    ),
    # Limits, to the byte
    Case(
        "H8",
        "target-at-limit",
        _line(_padded_target(8192)),
        seen=((_padded_target(8192).encode(), BODY),),
        differs="limit",
    ),
    Case(
        "H8", "target-over-limit", _line(_padded_target(8193)), (414,), closes=True, differs="limit"
    ),
    Case("H8", "head-at-limit", _padded_head(64 * 1024), differs="limit"),
    Case(
        "H8", "head-over-limit", _padded_head(64 * 1024 + 1), (431,), closes=True, differs="limit"
    ),
    Case("H8", "fields-at-limit", request(*["a: b"] * 126), differs="limit"),
    Case("H8", "fields-over-limit", request(*["a: b"] * 127), (431,), closes=True, differs="limit"),
    Case("H8", "endless-line", b"POST /" + b"a" * 9000, (414,), closes=True, differs="limit"),
    Case(
        "H8",
        "endless-head",
        request("a: " + "b" * 70_000)[:68_000],
        (431,),
        closes=True,
        differs="limit",
    ),
    Case(
        "O6",
        "length-over-limit",
        request().replace(b"content-length: ", b"content-length: 99999999"),
        (413,),
        closes=True,
        differs="limit",
    ),
    *(
        Case(
            "O6",
            f"coding-{coding}",
            request(f"content-encoding: {coding}") + HIDDEN,
            (415,),
            closes=True,
            differs="coding",
        )
        for coding in ("gzip", "br", "deflate", "zstd", "gzip, identity", CANARY)
    ),
    Case("O6", "coding-identity", request("content-encoding: identity")),
    # Fields that pass, and fields that stay
    _passed("H14", "te", "te: trailers", te=None),
    _passed("H14", "keep-alive", "keep-alive: timeout=5", keep_alive=None),
    _passed("H14", "proxy-connection", "proxy-connection: keep-alive", proxy_connection=None),
    _passed("H14", "proxy-authorization", "proxy-authorization: Basic x", proxy_authorization=None),
    _passed("H14", "trailer", "trailer: a", trailer=None),
    _passed("H14", "upgrade", "upgrade: h2c", "connection: upgrade", upgrade=None, connection=None),
    _passed("H14", "named", "connection: a, b", "a: 1", "b: 2", "c: 3", a=None, b=None, c=b"3"),
    _passed("H14", "named-twice", "connection: a", "connection: B", "a: 1", "b: 2", a=None, b=None),
    _passed(
        "H14",
        "named-authorization",
        "connection: authorization",
        "authorization: k",
        authorization=b"k",
    ),
    _passed(
        "H14",
        "named-content-type",
        "connection: content-type",
        "content-type: x/y",
        content_type=b"x/y",
    ),
    _passed("H14", "named-content-length", "connection: content-length"),
    _passed("H14", "named-host", "connection: host"),
    _passed(
        "H14",
        "named-request-id",
        "connection: x-request-id",
        "x-request-id: mine",
        x_request_id=b"mine",
    ),
    _passed("H14", "ours", "x-tokenlane-replica: evil", x_tokenlane_replica=None),
    _passed("H14", "http2-settings", "http2-settings: AAMAAABk", http2_settings=None),
    _passed(
        "H14",
        "kept",
        "accept: a/b",
        "cookie: c=d",
        "traceparent: 00-1",
        accept=b"a/b",
        cookie=b"c=d",
    ),
    _passed("S1", "request-id-bad", "x-request-id: a b"),
    _passed("S1", "request-id-long", f"x-request-id: {'a' * 200}"),
    _passed("S1", "request-id-high", "x-request-id: \xe9"),
    _passed("H6", "underscore", "content_length: 3", "a_b: c"),
    _passed("H6", "spaces-around", "a: \t b \t ", a=b"b"),
    _passed("H6", "high-bytes", "a: \xe9\xff", a=b"\xe9\xff"),
    _passed("H6", "tab-inside", "a: b\tc", a=b"b\tc"),
    _passed("H6", "nbsp-around", "a: \x85b\xa0", a=b"\x85b\xa0"),
    _passed("H6", "no-space", "aaaaaaaaaaaa:++++++++", aaaaaaaaaaaa=b"++++++++"),
    _passed("H6", "empty-value", "a:", a=b""),
    _passed("H6", "odd-name", "!#$%&'*+.^`|~a: b"),
    _passed("H6", "repeated", "a: 1", "a: 2"),
]

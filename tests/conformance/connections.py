"""What stands behind a request: pipelining, keep-alive, Upgrade, Expect, early answers."""

from tests.conformance.corpus import BODY, HIDDEN, Case, chunked, request
from tests.raw import CHAT, chat, chunk, get, post

Q = CHAT.encode()
TWO = (Q + b"?hidden", chat("two"))
ONE = (Q, BODY)
CLOSE = request("connection: close")
LOST = post("/unknown", BODY)
UPGRADE = request("upgrade: websocket", "connection: upgrade")
EXPECT = request("expect: 100-continue")
WHOLE_CHUNKED = chunked(chunk(BODY), chunk(b""))
DEEP = 40
OTHERS = ("PUT", "PATCH")


def _tunnel(name: str, protocol: str) -> Case:
    data = request(f"upgrade: {protocol}", "connection: Upgrade, HTTP2-Settings") + HIDDEN
    return Case("H11", name, data, (200, 200), seen=(ONE, TWO), fields={b"upgrade": None})


CASES: list[Case] = [
    # Pipelining
    Case("H10", "two", request() * 2, (200, 200)),
    Case("H10", "many", request() * DEEP, (200,) * DEEP),
    Case("H10", "mixed", request() + WHOLE_CHUNKED + request(), (200,) * 3),
    Case("H10", "other-targets", HIDDEN + request() + HIDDEN, (200,) * 3, seen=(TWO, ONE, TWO)),
    Case(
        "H10",
        "answered-here",
        get("/v1/models") + request(),
        (200, 200),
        seen=(ONE,),
        differs="routes",
    ),
    Case(
        "H10", "empty-line-between", request() + b"\r\n" + request(), (200, 200), differs="strict"
    ),
    Case("H10", "empty-line-first", b"\r\n" + request(), differs="strict"),
    Case(
        "H10",
        "good-then-bad",
        request() + b"BAD\r\n\r\n" + HIDDEN,
        (200, 400),
        closes=True,
        differs="strict",
    ),
    Case(
        "H10",
        "good-then-two-lengths",
        request() + request("transfer-encoding: chunked") + HIDDEN,
        (200, 400),
        closes=True,
        differs="strict",
    ),
    Case(
        "H10", "good-then-lf", request() + b"\n" + HIDDEN, (200, 400), closes=True, differs="strict"
    ),
    Case("H10", "surplus", request() + b"x" + request(), (200, 501), closes=True, differs="strict"),
    Case(
        "H10",
        "chunked-surplus",
        WHOLE_CHUNKED + b"0\r\n\r\n" + HIDDEN,
        (200, 400),
        closes=True,
        differs="strict",
    ),
    Case(
        "H10",
        "chunked-surplus-nul",
        WHOLE_CHUNKED + b"\x00" + HIDDEN,
        (200, 400),
        closes=True,
        differs="strict",
    ),
    Case(
        "H10",
        "good-then-control",
        request() + request("a: \x0c") + HIDDEN,
        (200, 400),
        closes=True,
        differs="strict",
    ),
    Case(
        "H10",
        "methods-between",
        b"\r\n".join((request(), *(request(start=f"{one} {CHAT} HTTP/1.1") for one in OTHERS))),
        (200, 405, 405),
        seen=(ONE,),
        differs="routes",
    ),
    Case(
        "H10",
        "length-zero-then-more",
        request(body=b"") + request() + HIDDEN,
        (400, 200, 200),
        seen=(ONE, TWO),
        differs="routes",
    ),
    Case("H10", "unknown-between", request() + LOST + request(), (200, 404, 200), differs="routes"),
    Case(
        "H10",
        "refused-body-between",
        request() + request(body=b"{") + request(),
        (200, 400, 200),
        differs="routes",
    ),
    # Keep-alive
    Case("H14", "close", CLOSE, closes=True),
    Case("H14", "close-then-more", CLOSE + HIDDEN, closes=True),
    Case("H14", "close-in-list", request("connection: keep-alive, close") + HIDDEN, closes=True),
    Case("H14", "close-capitals", request("Connection: CLOSE") + HIDDEN, closes=True),
    Case("H14", "close-tab", request("connection: close\t") + b"\r\n" + HIDDEN, closes=True),
    Case("H14", "close-then-empty-line", CLOSE + b"\r\n" + HIDDEN, closes=True),
    Case("H14", "close-then-garbage", CLOSE + b"abc\r\n\r\n", closes=True),
    Case(
        "H14",
        "close-first-in-list",
        request("connection: close, x, upgrade, x, keep-alive") + HIDDEN,
        closes=True,
    ),
    Case(
        "H14",
        "close-twice",
        request("connection: keep-alive", "connection: close") + HIDDEN,
        closes=True,
    ),
    Case(
        "H14",
        "keep-alive-then-more",
        request("connection: keep-alive") + HIDDEN,
        (200, 200),
        seen=(ONE, TWO),
    ),
    Case("H9", "http-1.0-then-more", request(start=f"POST {CHAT} HTTP/1.0") + HIDDEN, closes=True),
    Case(
        "H9",
        "http-1.0-get-with-body",
        b"GET /v1/models HTTP/1.0\r\nconTENT-lengtH: %d\r\n\r\n" % len(HIDDEN) + HIDDEN * 2,
        closes=True,
        seen=(),
        differs="routes",
    ),
    Case(
        "H9",
        "preface-and-frames",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0\0\0\5\1\5\0\0\0\1\x82a\tb\t",
        (505,),
        closes=True,
        differs="strict",
    ),
    # Upgrade
    _tunnel("websocket", "websocket"),
    _tunnel("h2c", "h2c"),
    _tunnel("foo", "foo"),
    _tunnel("tls", "TLS/1.0"),
    Case(
        "H11",
        "upgrade-chunked",
        chunked(chunk(BODY), chunk(b"")).replace(
            b"\r\n\r\n", b"\r\nupgrade: foo\r\nconnection: upgrade\r\n\r\n", 1
        )
        + HIDDEN,
        (200, 200),
        seen=(ONE, TWO),
    ),
    Case(
        "H11",
        "upgrade-in-list",
        request("connection: keep-alive, upgrade", "upgrade: websocket") + HIDDEN,
        (200, 200),
        seen=(ONE, TWO),
        fields={b"upgrade": None},
    ),
    Case(
        "H11",
        "upgrade-get",
        get("/v1/models", "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: x\r\n")
        + HIDDEN,
        (200, 200),
        seen=(TWO,),
        differs="routes",
    ),
    Case(
        "H11",
        "upgrade-then-garbage",
        UPGRADE + b"\x81\x05hello\r\n\r\n",
        (200, 400),
        closes=True,
        differs="strict",
    ),
    Case(
        "H11",
        "preface-behind",
        UPGRADE + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        (200, 505),
        closes=True,
        differs="strict",
    ),
    Case(
        "H11",
        "websocket-key",
        request(
            "upgrade: websocket",
            "connection: upgrade",
            "sec-websocket-key: x",
            "sec-websocket-version: 13",
        ),
    ),
    Case(
        "H11",
        "connect-with-body",
        b"CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n" + HIDDEN,
        (405,),
        closes=True,
        differs="status",
    ),
    # Expect
    Case("H12", "continue", EXPECT),
    Case("H12", "continue-capitals", request("Expect: 100-Continue")),
    Case("H12", "continue-then-more", EXPECT + HIDDEN, (200, 200), seen=(ONE, TWO)),
    Case(
        "H12",
        "continue-chunked",
        chunked(chunk(BODY), chunk(b"")).replace(
            b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n", 1
        ),
    ),
    Case(
        "H12",
        "continue-on-1.0",
        request("expect: 100-continue", start=f"POST {CHAT} HTTP/1.0"),
        closes=True,
        differs="old",
    ),
    *(
        Case(
            "H12",
            f"expect-{name}",
            request(f"expect: {value}") + HIDDEN,
            (417,),
            closes=True,
            differs="interim",
        )
        for name, value in {
            "list": "100-continue, x",
            "other": "200-ok",
            "empty": "",
            "quoted": '"100-continue"',
            "near": "100-continued",
        }.items()
    ),
    Case(
        "H12",
        "continue-without-body",
        get("/v1/models", "expect: 100-continue\r\n") + request(),
        (200, 200),
        seen=(ONE,),
        differs="routes",
    ),
    # Early answers
    Case(
        "H13",
        "get-with-body",
        get("/v1/models", f"content-length: {len(HIDDEN)}\r\n") + HIDDEN + request(),
        (200, 200),
        seen=(ONE,),
        differs="routes",
    ),
    Case("H13", "unknown-path", LOST + request(), (404, 200), differs="routes"),
    Case(
        "H13",
        "unknown-path-hidden",
        post("/unknown", HIDDEN) + request(),
        (404, 200),
        differs="routes",
    ),
    Case(
        "H13",
        "unknown-path-chunked",
        chunked(chunk(HIDDEN), chunk(b"")).replace(Q, b"/unknown", 1) + request(),
        (404, 200),
        differs="routes",
    ),
    Case("H13", "unknown-path-many", LOST * 5 + request(), (404,) * 5 + (200,), differs="routes"),
    Case(
        "H13",
        "wrong-method",
        request(start=f"GET {CHAT} HTTP/1.1", body=HIDDEN) + request(),
        (405, 200),
        differs="routes",
    ),
]

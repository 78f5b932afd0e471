"""Whatever a client writes, the replicas see the requests that the gateway answered, and no other.

Two readings of one byte stream are how requests of one client end up in the answers of another.
"""

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.http.heads import BAD_HEADS, whole
from tests.raw import CHAT, Client, Upstream, answering, chat, chunk, ok, post
from tests.support import gateway
from tokenlane.config.settings import ServerSettings, Settings

SHORT = Settings(
    server=ServerSettings(idle_deadline_s=0.05, head_deadline_s=0.05, body_deadline_s=0.05)
)
BODY = chat("one")
HIDDEN = post(CHAT + "?hidden", chat("two"))
CHUNKED = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()

GOOD = [
    post(CHAT, BODY),
    post(CHAT, BODY, "Connection: keep-alive, Content-Length\r\n"),
    post(CHAT, BODY, "Upgrade: websocket\r\nConnection: Upgrade\r\n"),
    post(CHAT, BODY).replace(b"content-length", b"CONTENT-LENGTH"),
    post(CHAT, BODY).replace(b"content-length: ", b"Content-Length:  "),
    CHUNKED + chunk(BODY) + chunk(b""),
    CHUNKED + chunk(BODY[:5]) + chunk(BODY[5:]) + b"0\r\nContent-Length: 7\r\n\r\n",
    post(CHAT, HIDDEN),
    post("/unknown", HIDDEN),
    b"\r\n",
]
PARTS = [
    *GOOD,
    *(case[3] for case in BAD_HEADS if len(case[3]) < 500),
    HIDDEN,
    CHUNKED,
    chunk(HIDDEN),
    chunk(b""),
    b"0\r\n",
    b"5\r\nabcdefg\r\n",
    whole("Content-Length: 5"),
    whole("Content-Length: 500"),
    whole("Expect: 100-continue", "Content-Length: 5"),
    BODY,
    b"\n",
    b"\x00",
    b"GET ",
]


async def answers_of(client: Client) -> list[int]:
    """The statuses of all answers until the gateway closes."""
    data = await client.rest()
    statuses = []
    while data:
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        parser.receive_data(data)
        while True:
            event = parser.next_event()
            if isinstance(event, h11.Response):
                statuses.append(event.status_code)
            if isinstance(event, h11.EndOfMessage):
                break
            assert event is not h11.NEED_DATA
        data = parser.trailing_data[0]
    return statuses


@pytest.mark.row("H17")
@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(GOOD), max_size=3),
    st.lists(st.sampled_from(PARTS), max_size=4),
    st.sampled_from([0, 0, 1, 7]),
)
@example([GOOD[3], GOOD[3]], [], 0)
@example([GOOD[4], GOOD[4]], [HIDDEN], 0)
async def test_requests_and_answers_are_one_to_one(
    good: list[bytes], parts: list[bytes], piece_bytes: int
) -> None:
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=SHORT) as bench:
            client = await bench.client()
            try:
                await client.send(b"".join((*good, *parts)), piece_bytes)
            except ConnectionError:
                assert parts  # refused before all of it was sent
            statuses = await answers_of(client)
    assert statuses.count(200) == len(upstream.asked)
    assert set(statuses) <= {200, 400, 404, 405, 408, 413, 415, 417, 501, 505}
    if 408 not in statuses:  # a busy machine may be late for one
        assert len(statuses) >= sum(one != b"\r\n" for one in good)
    for asked in upstream.asked:
        names = [name for name, _ in asked.headers]
        assert names.count(b"host") == names.count(b"content-length") == 1
        assert not {b"transfer-encoding", b"upgrade", b"connection", b"expect"} & set(names)

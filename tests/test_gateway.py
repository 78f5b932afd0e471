"""The life of a request against replicas made of raw bytes."""

from tests.raw import CHAT, DONE, EVENTS, Upstream, answering, chat, ok, post, stream
from tests.support import gateway


async def test_a_whole_answer_passes() -> None:
    replica = Upstream(answering(ok(b'{"x":1}', "x-mine: yes\r\n")))
    async with replica as upstream, gateway(upstream.url) as bench:
        answer = await bench.ask(post(CHAT, chat()))
    assert (answer.status, answer.body, answer.whole) == (200, b'{"x":1}', True)
    assert answer.headers["x-mine"] == "yes"
    assert answer.headers["x-tokenlane-replica"] == upstream.url.removeprefix("http://")


async def test_a_stream_passes_byte_for_byte() -> None:
    async with Upstream(answering(stream())) as upstream, gateway(upstream.url) as bench:
        answer = await bench.ask(post(CHAT, chat(stream=True)))
    assert answer.whole
    assert answer.body == b"".join(EVENTS)
    assert answer.body.endswith(DONE)

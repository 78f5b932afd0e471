"""Both ends of a proxy under a case: what its client gets, and what its upstream sees, by h11.

Invariants:
- The recorder refuses what h11 refuses: a request that it counts has one reading.
- A connection that stays is asked once more, so that bytes left over would show.
"""

import contextlib
from dataclasses import dataclass, field

import h11

from tests.conformance.corpus import Case
from tests.raw import CHAT, Client, Peer, chat, post

PROBE = chat("probe")


@dataclass
class Request:
    """As h11 reads it."""

    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""

    def values(self, name: bytes) -> list[bytes]:
        """All values under a lower-case name."""
        return [value for given, value in self.headers if given == name]


@dataclass
class Recorder:
    """An upstream's script: notes every request of every connection, and answers each with 200."""

    requests: list[Request] = field(default_factory=list)

    async def __call__(self, peer: Peer) -> None:
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        request: Request | None = None
        bodiless = False
        while True:
            event = parser.next_event()  # a RemoteProtocolError fails the test
            if event is h11.NEED_DATA:
                data = b""
                with contextlib.suppress(ConnectionError):
                    data = await peer.more()
                if not data:
                    return
                parser.receive_data(data)
            elif isinstance(event, h11.Request):
                request = Request(event.target, list(event.headers))
                bodiless = event.method == b"HEAD"
            elif isinstance(event, h11.Data):
                assert request is not None
                request.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                self.requests.append(request)
                head = h11.Response(status_code=200, headers=[("content-length", "2")])
                answer = [parser.send(head)]
                if not bodiless:
                    answer.append(parser.send(h11.Data(data=b"{}")))
                answer.append(parser.send(h11.EndOfMessage()))
                await peer.send(b"".join(piece or b"" for piece in answer))
                if parser.our_state is h11.MUST_CLOSE:
                    peer.close()
                    return
                parser.start_next_cycle()
            else:
                return


@dataclass
class Observed:
    """What the client saw. stays: the connection answered one request more."""

    statuses: tuple[int, ...] = ()
    stays: bool = False
    bodies: list[bytes] = field(default_factory=list)


async def observe(client: Client, case: Case, *, slowly: bool) -> Observed:
    """Sends a case, at once or byte by byte, and reads every answer it is owed."""
    seen = Observed()
    piece_bytes = max(1, len(case.data) // 2000) if slowly else 0
    with contextlib.suppress(ConnectionError):  # refused before all of it was sent
        await client.send(case.data, piece_bytes)
    for _ in case.statuses:
        answer = await client.answer(case.method)
        if not answer.status:
            return seen
        seen.statuses += (answer.status,)
        seen.bodies.append(answer.body)
        seen.stays = answer.headers.get("connection") != "close"
    if not seen.stays:
        assert await client.rest() == b""
        return seen
    probe = await client.ask(post(CHAT, PROBE))
    seen.stays = probe.status == 200
    return seen

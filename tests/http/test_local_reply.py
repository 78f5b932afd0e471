"""A client that is refused at the door: what it is told, who is not, and what becomes of it."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.raw import CHAT, MESSAGES, Client, chat, get, post
from tests.support import listener
from tokenlane.config.settings import ServerSettings
from tokenlane.http.acceptor import too_many_clients
from tokenlane.http.heads import RequestHeads
from tokenlane.http.local_reply import LocalReply
from tokenlane.http.server_state import ServerState
from tokenlane.protocols.dialects import dialect_of

CHUNKED = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nhost: a\r\n\r\n0"


def replies() -> LocalReply:
    state = ServerState(ServerSettings(), add_request_id=True)
    heads = RequestHeads(ServerSettings(), error_format=dialect_of)
    return LocalReply(state, heads, frozenset(("/health",)))


@asynccontextmanager
async def knocked(request: bytes) -> AsyncIterator[tuple[Client, socket.socket]]:
    """A client that has sent this, and its connection here."""
    with listener() as door:
        door.listen()
        client = await Client.connect(door.getsockname()[1])
        sock, _ = door.accept()
        if request:
            await client.send(request)
            sock.recv(1, socket.MSG_PEEK)
        with sock:
            yield client, sock
        client.close()


def now_s() -> float:
    return time.monotonic()


@pytest.mark.parametrize(
    "request_", [post(CHAT, chat()), post(CHAT, chat() * 100), get("/v1/models"), get("/nowhere")]
)
async def test_the_answer_is_whole_and_the_connection_ends(request_: bytes) -> None:
    async with knocked(request_) as (client, sock):
        assert replies().refuse(sock, too_many_clients(), now_s())
        assert sock.fileno() == -1
        answer = await client.answer("GET" if request_.startswith(b"GET") else "POST")
        assert (answer.status, answer.error["code"]) == (503, "too_many_clients")
        assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
        assert answer.whole
        assert await client.rest() == b""


async def test_it_is_in_the_dialect_of_the_path_and_has_the_clients_id() -> None:
    async with knocked(post(MESSAGES, chat(), "x-request-id: mine\r\n")) as (client, sock):
        assert replies().refuse(sock, too_many_clients(), now_s())
        answer = await client.answer()
        assert answer.refusal["type"] == "overloaded_error"
        assert answer.headers["request-id"] == "mine"


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param(post(CHAT, chat())[:-10], id="a body that is not there yet"),
        pytest.param(post(CHAT, b"x" * 300_000), id="a body of which a part is read"),
        pytest.param(
            b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nhost: a\r\n\r\n0", id="chunks"
        ),
        pytest.param(b"POST / HT", id="half a head"),
        pytest.param(b"GET / HTTP/1.1\r\na: " + b"x" * 5000, id="a long head"),
        pytest.param(b"garbage\r\n\r\n", id="no request"),
    ],
)
async def test_what_is_not_read_whole_destroys_no_answer(begun: bytes) -> None:
    made = replies()
    async with knocked(begun) as (client, sock):
        assert made.refuse(sock, too_many_clients(), 100.0)
        answer = await client.answer()
        assert (answer.status, answer.whole) == (503, True)
        assert json.loads(answer.body)["error"]["code"] == "too_many_clients"
        made.tidy(101.0)
        assert not made.tidy(103.0)
        assert sock.fileno() == -1


@pytest.mark.parametrize("request_", [get("/health"), get("/health?deep=1"), b""])
async def test_who_is_spared_and_who_has_not_asked_are_left_to_be_served(request_: bytes) -> None:
    async with knocked(request_) as (_, sock):
        assert not replies().refuse(sock, too_many_clients(), now_s())
        sock.setblocking(False)
        assert (sock.recv(1000) if request_ else b"") == request_


async def test_a_client_that_has_left_costs_nothing() -> None:
    async with knocked(b"") as (client, sock):
        client.reset()
        await asyncio.sleep(0)
        assert replies().refuse(sock, too_many_clients(), now_s())
        assert sock.fileno() == -1


async def test_few_linger() -> None:
    made = replies()
    async with knocked(b"POST / HT") as (_, first):
        assert made.refuse(first, too_many_clients(), 100.0)
        pairs = [socket.socketpair() for _ in range(256)]
        for ours, theirs in pairs:
            theirs.send(b"POST / HT")
            assert made.refuse(ours, too_many_clients(), 100.0)
        assert first.fileno() == -1
        assert made.tidy(101.0)
        assert not made.tidy(102.0)
        for _, theirs in pairs:
            theirs.close()

"""A client's connection walks every row of its table, and nothing leads it anywhere else.

The bytes are scripted, and so is the transport: it does what the next line says, when it says so.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.http.handlers import TEXT
from tests.raw import get, post
from tests.scripted import ScriptedTransport, reachable
from tokenlane.config.settings import ServerSettings
from tokenlane.errors import RequestError
from tokenlane.http.connection import ServerConnection
from tokenlane.http.connection_states import (
    AFTER,
    ANSWER_END,
    ANSWERING,
    BODY,
    CLOSE,
    CLOSED,
    CLOSING,
    DISCARDING,
    HEAD,
    HEAD_END,
    HEAD_PART,
    IDLE,
    LAST_ANSWER,
    LINGERING,
    LOST,
    MALFORMED,
    REFUSING,
    REQUEST_END,
    RESUMED,
)
from tokenlane.http.deadline import NEVER
from tokenlane.http.server import Exchange, HttpServer

CHUNKED_HEAD = post("/", b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
CLOSE_LINE = "connection: close\r\n"
SMALL = ServerSettings(body_limit_bytes=200, head_limit_bytes=300, pipelined_limit_bytes=100)


class Scene:
    """A connection of a server whose handler answers when it is told to. seen: the connection's
    state at each write. told: how many bodies the handler could not read."""

    def __init__(self) -> None:
        self.server = HttpServer(self._handle, SMALL, guarded=True)
        self.transport = ScriptedTransport()
        self.transport.on_write = self._writes
        self.connection = ServerConnection(self.server)
        self.connection.connection_made(cast(asyncio.Transport, self.transport))
        self.reads_body = False
        self.told = 0
        self.seen: list[int] = []

    async def _handle(self, exchange: Exchange) -> None:
        try:
            if self.reads_body:
                await exchange.read_body()
        except RequestError:
            self.told += 1
        await asyncio.Event().wait()

    def _writes(self) -> None:
        assert self.state != CLOSED
        self.seen.append(self.state)

    @property
    def state(self) -> int:
        return self.connection.state

    async def turn(self) -> None:
        """What was put off to the next turns of the loop happens."""
        for _ in range(4):
            await asyncio.sleep(0)

    # -- what may happen in any state ----------------------------------------------------------

    def bytes(self, data: bytes) -> None:
        if self.state != CLOSED:
            self.connection.data_received(data)

    def answer(self) -> None:
        """The handler answers, if there is one that has not, and ends."""
        exchange, task = self._open, self.connection._task
        if exchange is not None and task is not None:
            exchange.respond(200, TEXT, b"yes")
            task.cancel()

    def last_answer(self) -> None:
        if self._open is not None:
            self._open.keep_alive = False
            self.answer()

    def break_off(self) -> None:
        if self._open is not None:
            self._open.abort()

    def pause(self) -> None:
        if self.state != CLOSED and self.connection._writable is None:
            self.connection.pause_writing()

    def resume(self) -> None:
        if self.state != CLOSED and self.connection._writable is not None:
            self.connection.resume_writing()

    def time_out(self) -> None:
        """The deadline passes, if there is one."""
        if self.connection._deadline.due_s != NEVER:
            self.connection._deadline.clear()
            self.connection._timed_out()

    def leave(self) -> None:
        if self.state != CLOSED:
            self.connection.eof_received()

    def lose(self) -> None:
        if self.state != CLOSED:
            self.connection.connection_lost(None)

    def drain(self) -> None:
        self.connection.begin_drain()

    def cut(self) -> None:
        self.connection.cut()

    @property
    def _open(self) -> Exchange | None:
        exchange = self.connection._exchange
        return None if exchange is None or exchange.ended else exchange

    async def end(self) -> None:
        """The client is gone, and nothing of it is left."""
        self.lose()
        await self.turn()
        assert self.state == CLOSED
        assert not self.server.connections
        assert self.server.state.body_memory.held_bytes == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        self.transport.sock.close()


WHOLE = post("/", b"hello")
HEAD_ONLY = post("/", b"hello")[:-5]
Step = bytes | Callable[[Scene], object]

# How each state is reached from a new connection.
WAYS: dict[int, list[Step]] = {
    IDLE: [],
    HEAD: [b"GET /"],
    BODY: [HEAD_ONLY],
    DISCARDING: [HEAD_ONLY, Scene.answer],
    ANSWERING: [WHOLE],
    REFUSING: [CHUNKED_HEAD, b"zz\r\n"],
    LINGERING: [HEAD_ONLY, Scene.last_answer],
    CLOSING: [Scene.leave],
    CLOSED: [Scene.lose],
}

# Each row of the table: what brings it about, and where it ends if that leads on at once.
ROWS: dict[tuple[int, int], tuple[list[Step], list[int]]] = {
    (IDLE, HEAD_PART): ([b"GET /"], [HEAD]),
    (IDLE, HEAD_END): ([HEAD_ONLY], [BODY]),
    (IDLE, REQUEST_END): ([WHOLE], [ANSWERING]),
    (IDLE, MALFORMED): ([b"GET / HTTP/9.9\r\n\r\n"], [REFUSING, LINGERING]),
    (IDLE, RESUMED): ([Scene.pause, Scene.resume], [IDLE]),
    (HEAD, HEAD_PART): ([b"index"], [HEAD]),
    (HEAD, HEAD_END): ([b" HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"], [BODY]),
    (HEAD, REQUEST_END): ([b" HTTP/1.1\r\nhost: x\r\n\r\n"], [ANSWERING]),
    (HEAD, MALFORMED): ([Scene.time_out], [REFUSING, LINGERING]),
    (HEAD, RESUMED): ([Scene.pause, Scene.resume], [IDLE]),
    (BODY, REQUEST_END): ([b"hello"], [ANSWERING]),
    (BODY, MALFORMED): ([Scene.time_out], [REFUSING]),
    (BODY, ANSWER_END): ([Scene.answer], [DISCARDING]),
    (BODY, LAST_ANSWER): ([Scene.last_answer], [LINGERING]),
    (DISCARDING, REQUEST_END): ([b"hello"], [IDLE]),
    (DISCARDING, MALFORMED): ([Scene.time_out], [LINGERING]),
    (ANSWERING, ANSWER_END): ([Scene.answer], [IDLE]),
    (ANSWERING, LAST_ANSWER): ([b"GET", Scene.last_answer], [LINGERING]),
    (REFUSING, LAST_ANSWER): ([Scene.answer], [LINGERING]),
    **{(state, CLOSE): ([Scene.leave], [CLOSING]) for state in range(IDLE, CLOSING)},
    (CLOSING, CLOSE): ([Scene.cut], [CLOSING]),
    **{(state, LOST): ([Scene.lose], [CLOSED]) for state in range(IDLE, CLOSED)},
}


async def after(steps: list[Step], scene: Scene) -> None:
    for step in steps:
        if isinstance(step, bytes):
            scene.bytes(step)
        else:
            step(scene)


async def at(state: int) -> Scene:
    """A connection in this state, whose handler waits for the body where there is to be one."""
    scene = Scene()
    scene.reads_body = state in (BODY, REFUSING)
    for step in WAYS[state]:
        await after([step], scene)
        await scene.turn()
    assert scene.state == state
    return scene


def test_the_table_is_whole() -> None:
    assert list(AFTER) == list(range(CLOSED + 1)) == list(WAYS)
    assert set(ROWS) == {(state, event) for state, row in AFTER.items() for event in row}


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_every_row_is_walked(row: tuple[int, int]) -> None:
    steps, states = ROWS[row]
    assert AFTER[row[0]][row[1]] == states[0]
    scene = await at(row[0])
    scene.seen.clear()
    await after(steps, scene)
    # What leads on at once is seen by what is written meanwhile.
    seen = [*scene.seen, scene.state] if len(states) > 1 else [scene.state]
    assert seen == states
    await scene.end()


async def test_lingering_ends_with_a_close_that_sends_what_is_unsent() -> None:
    scene = await at(LINGERING)
    scene.time_out()
    assert (scene.state, scene.transport.ended) == (CLOSING, "close")
    scene.time_out()
    assert scene.transport.ended == "abort"
    await scene.end()


HAPPENINGS: list[Step] = [
    *(b"", b"G", b"\r\n", WHOLE, HEAD_ONLY, CHUNKED_HEAD, b"hello", b"0\r\n\r\n", b"zz\r\n"),
    *(get("/") * 5, get("/", CLOSE_LINE), b"GET / HTTP/9.9\r\n\r\n", b"x" * 400),
    *(Scene.answer, Scene.last_answer, Scene.break_off, Scene.pause, Scene.resume),
    *(Scene.time_out, Scene.leave, Scene.lose, Scene.drain, Scene.cut),
]


def told(happening: Step) -> str:
    """A step, in a test's id."""
    return repr(happening[:20]) if isinstance(happening, bytes) else happening.__name__


@pytest.mark.parametrize("state", AFTER)
@pytest.mark.parametrize("happening", HAPPENINGS, ids=told)
async def test_whatever_else_happens_leads_nowhere_else(state: int, happening: Step) -> None:
    """What would be a pair that the table lacks raises KeyError, here and in service."""
    scene = await at(state)
    await after([happening], scene)
    await scene.turn()
    assert scene.state in reachable(AFTER, state)
    await scene.end()


class Connections(RuleBasedStateMachine):
    """A client and a handler that do anything in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._failed)
        self.failures: list[dict[str, Any]] = []
        self.scene = self.loop.run_until_complete(self._begin())

    async def _begin(self) -> Scene:
        return Scene()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(context)

    @rule(state=st.sampled_from(list(AFTER)), reads_body=st.booleans())
    def next_client(self, state: int, reads_body: bool) -> None:
        self.loop.run_until_complete(self.scene.end())
        self.scene = self.loop.run_until_complete(at(state))
        self.scene.reads_body = reads_body

    @rule(happening=st.sampled_from(HAPPENINGS), turns=st.integers(0, 2))
    def happens(self, happening: Step, turns: int) -> None:
        self.loop.run_until_complete(self._happens(happening, turns))

    async def _happens(self, happening: Step, turns: int) -> None:
        await after([happening], self.scene)
        for _ in range(turns):
            await self.scene.turn()

    @invariant()
    def the_state_says_it_all(self) -> None:
        scene, connection = self.scene, self.scene.connection
        assert not self.failures
        if scene.state in (IDLE, HEAD):
            assert connection._exchange is None
        if scene.state in (IDLE, HEAD, DISCARDING, LINGERING):
            assert scene.server.state.body_memory.held_bytes == 0
        if scene.state in (BODY, DISCARDING):
            assert connection.body.reader is not None
        if scene.state in (BODY, ANSWERING, REFUSING):
            assert connection._exchange is not None
            assert not connection._exchange.ended
            assert connection._task is not None
        waits = scene.state not in (ANSWERING, REFUSING) or connection._writable is not None
        if waits and scene.state != CLOSED and scene.transport.ended != "abort":
            # Whatever is waited for of the client is waited for until a deadline.
            assert connection._deadline.due_s != NEVER
        assert bool(scene.transport.ended) <= (scene.state in (CLOSING, CLOSED))

    def teardown(self) -> None:
        self.loop.run_until_complete(self.scene.end())
        self.loop.close()
        assert not self.failures


TestConnections = Connections.TestCase
TestConnections.settings = settings(max_examples=150, stateful_step_count=30)

"""A relayed answer walks every row of its table, and nothing leads it anywhere else.

The bytes are scripted, on both sides, and so are the transports: see tests/scripted.py.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.raw import (
    ABORTED,
    CHAT,
    DONE,
    LAST,
    ROLE,
    STREAM_HEAD,
    TOKEN,
    USAGE,
    chat,
    chunk,
    ok,
    post,
)
from tests.scripted import ScriptedTransport, reachable
from tokenlane.config.settings import ServerSettings, UpstreamSettings
from tokenlane.http.connection import ServerConnection
from tokenlane.http.pool import ReplicaPool
from tokenlane.http.server import Exchange, HttpServer
from tokenlane.http.upstream import UpstreamConnection
from tokenlane.protocols.dialects import Dialect
from tokenlane.relay.relay_states import (
    AFTER,
    BEGIN,
    COMPLETE,
    END,
    FAILED,
    FAILURE,
    FIRST_TOKEN,
    FLOWING,
    HEAD,
    HOLDING,
    NOTHING,
    REFUSED,
    RELAYING,
    STOP,
    STOPPED,
    TRUNCATED,
    WAITING,
)
from tokenlane.relay.response import Relay
from tokenlane.routing.retry import Phase

BUSY = ok().replace(b"200 OK", b"503 Busy")
JSON_HEAD = ok()[:-2]
# Three are more than is held back, and each less than a turn's work.
COMMENTS = chunk(b": still here\n\n" * 2000)
LAST_CHUNK = b"0\r\n\r\n"


class Scene:
    """An answer on its way from a replica to a client. seen: its state at each write to the client.
    computed: what was told when its prompt was. may_retry: it is held back while another replica
    might do better."""

    def __init__(self, *, may_retry: bool = True, minor: int = 1) -> None:
        self.server = HttpServer(self._handle, ServerSettings(), guarded=True)
        self.client, self.replica = ScriptedTransport(), ScriptedTransport()
        self.client.on_write = self._writes
        self.down = ServerConnection(self.server)
        self.down.connection_made(cast(asyncio.Transport, self.client))
        request = post(CHAT, chat(stream=True))
        self.down.data_received(request.replace(b"HTTP/1.1", b"HTTP/1.%d" % minor))
        assert self.down._exchange is not None
        self.up = UpstreamConnection(ReplicaPool("http://127.0.0.1:9", UpstreamSettings()))
        self.up.connection_made(cast(asyncio.Transport, self.replica))
        self.task = self.down._task
        self.seen: list[int] = []
        self.computed: list[float] = []
        self.lost = False
        self.relay = Relay(
            self.down._exchange,
            self.up,
            b"",
            dialect=Dialect.CHAT,
            may_retry=may_retry,
            kept=False,
            marked=True,
            told=False,
            on_computed=self.computed.append,
            on_made=None,
        )
        self.up.send("POST", [b""], self.relay)

    async def _handle(self, exchange: Exchange) -> None:
        await asyncio.Event().wait()

    def _writes(self) -> None:
        self.seen.append(self.state)

    @property
    def state(self) -> int:
        return self.relay.state

    def replica_waits(self) -> bool:
        """Its connection is not read."""
        return self.up._intake.held

    # -- what may happen in any state ----------------------------------------------------------

    def bytes(self, data: bytes) -> None:
        if not self.lost and not self.replica.ended:
            self.up.data_received(data)

    def lose(self) -> None:
        """The replica's connection is closed."""
        if not self.lost:
            self.lost = True
            self.up.connection_lost(None)

    def reset(self) -> None:
        if not self.lost:
            self.lost = True
            self.up.connection_lost(ConnectionResetError())

    def time_out(self) -> None:
        if not self.lost:
            self.up._timed_out()

    def cut(self) -> None:
        """The gateway stops."""
        self.down.cut()

    def pause(self) -> None:
        if self.down._writable is None:
            self.down.pause_writing()

    def resume(self) -> None:
        if self.down._writable is not None:
            self.down.resume_writing()

    def release(self) -> None:
        """There is nobody else to ask."""
        if self.state == REFUSED:
            self.relay.release(b"x-should-retry: false\r\n")

    async def end(self) -> None:
        """Both connections are gone, and nothing is left."""
        self.lose()
        self.down.connection_lost(None)
        assert self.task is not None
        self.task.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        self.client.sock.close()
        self.replica.sock.close()


Step = bytes | Callable[[Scene], object]

# How each state is reached from a new request.
WAYS: dict[int, list[Step]] = {
    WAITING: [],
    HOLDING: [STREAM_HEAD],
    RELAYING: [STREAM_HEAD, *[COMMENTS] * 3],
    FLOWING: [STREAM_HEAD, chunk(TOKEN)],
    STOPPED: [STREAM_HEAD, chunk(TOKEN), Scene.cut],
    COMPLETE: [ok()],
    REFUSED: [STREAM_HEAD, chunk(ABORTED), chunk(DONE) + LAST_CHUNK],
    FAILED: [Scene.lose],
    TRUNCATED: [STREAM_HEAD, chunk(TOKEN), Scene.lose],
}

# Each row of the table: what brings it about, and what it is seen to lead through.
ROWS: dict[tuple[int, int], tuple[list[Step], list[int]]] = {
    (WAITING, HEAD): ([STREAM_HEAD], [HOLDING]),
    (WAITING, END): ([ok()], [COMPLETE]),
    (WAITING, NOTHING): ([BUSY], [REFUSED]),
    (WAITING, FAILURE): ([Scene.time_out], [FAILED]),
    (HOLDING, BEGIN): ([COMMENTS] * 3, [RELAYING]),
    (HOLDING, END): ([b"{}"], [COMPLETE]),
    (HOLDING, NOTHING): ([chunk(ABORTED + DONE) + LAST_CHUNK], [REFUSED]),
    (HOLDING, FAILURE): ([chunk(ROLE), Scene.reset], [FAILED]),
    (RELAYING, FIRST_TOKEN): ([chunk(TOKEN)], [FLOWING]),
    (RELAYING, STOP): ([Scene.cut], [STOPPED]),
    (RELAYING, END): ([chunk(DONE) + LAST_CHUNK], [COMPLETE]),
    (RELAYING, FAILURE): ([Scene.lose], [TRUNCATED]),
    (FLOWING, STOP): ([Scene.cut], [STOPPED]),
    (FLOWING, END): ([chunk(DONE), LAST_CHUNK], [COMPLETE]),
    (FLOWING, FAILURE): ([LAST_CHUNK], [TRUNCATED]),
    (REFUSED, BEGIN): ([Scene.release], [RELAYING, COMPLETE]),
    (REFUSED, END): ([Scene.release], [COMPLETE]),
}
# Those that begin elsewhere than by the way to their state.
FROM: dict[tuple[int, int], list[Step]] = {(REFUSED, END): [BUSY], (HOLDING, END): [JSON_HEAD]}


async def after(steps: list[Step], scene: Scene) -> None:
    for step in steps:
        if isinstance(step, bytes):
            scene.bytes(step)
        else:
            step(scene)


async def at(state: int, **how: Any) -> Scene:
    """An answer in this state."""
    scene = Scene(**how)
    await after(WAYS[state], scene)
    assert how or scene.state == state
    return scene


def test_the_table_is_whole() -> None:
    assert list(AFTER) == list(range(TRUNCATED + 1)) == sorted(WAYS)
    assert set(ROWS) == {(state, event) for state, row in AFTER.items() for event in row}


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_every_row_is_walked(row: tuple[int, int]) -> None:
    steps, states = ROWS[row]
    assert AFTER[row[0]][row[1]] == states[0]
    scene = Scene()
    await after(FROM.get(row, WAYS[row[0]]), scene)
    assert scene.state == row[0]
    scene.seen.clear()
    await after(steps, scene)
    # What leads on at once is seen by what is written meanwhile.
    seen = [*dict.fromkeys(scene.seen), scene.state] if len(states) > 1 else [scene.state]
    assert seen == states
    assert scene.relay.done.done() == (scene.state >= COMPLETE)
    await scene.end()


@pytest.mark.parametrize(
    ("state", "phase"), [(FAILED, Phase.SENT), (REFUSED, Phase.HEAD), (TRUNCATED, Phase.RELAYED)]
)
async def test_the_retry_table_is_told_how_far_it_came(state: int, phase: Phase) -> None:
    scene = await at(state)
    assert scene.relay.phase() is phase
    await scene.end()


@pytest.mark.parametrize(
    "steps",
    [
        [*WAYS[REFUSED], Scene.release],
        [STREAM_HEAD, chunk(ROLE), chunk(USAGE), chunk(DONE) + LAST_CHUNK],
    ],
    ids=["refused", "no-token"],
)
async def test_a_held_answer_that_has_ended_pauses_no_connection(steps: list[Step]) -> None:
    """The replica's connection is in its pool again: nobody would resume it."""
    scene = Scene()
    scene.client.on_write = scene.pause
    await after(steps, scene)
    assert scene.state == COMPLETE
    assert scene.down._writable is not None
    assert not scene.replica_waits()
    await scene.end()


@pytest.mark.parametrize("may_retry", [True, False], ids=["held", "at-once"])
async def test_a_client_that_had_stopped_to_read_before_pauses_its_replica(may_retry: bool) -> None:
    """It has left earlier answers unread, and a 100 Continue was too much."""
    scene = Scene(may_retry=may_retry)
    scene.pause()
    assert not scene.replica_waits()
    scene.bytes(STREAM_HEAD)
    assert scene.replica_waits() != may_retry
    scene.bytes(chunk(TOKEN))
    assert scene.replica_waits()
    scene.resume()
    assert not scene.replica_waits()
    await scene.end()


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([STREAM_HEAD, chunk(ROLE)], []),
        ([STREAM_HEAD, chunk(ROLE), chunk(TOKEN), chunk(TOKEN)], ["first token"]),
        ([STREAM_HEAD.replace(b"200 OK", b"400 No"), chunk(ROLE), chunk(TOKEN)], [0.0]),
        ([JSON_HEAD, b"{}"], [0.0]),
        ([JSON_HEAD.replace(b"200 OK", b"500 No"), b"{}"], [0.0]),
        ([ok()], []),  # it has ended, which says as much
    ],
    ids=["head", "token", "refused-stream", "json", "error", "whole"],
)
async def test_only_a_streams_first_token_tells_when_its_prompt_was_computed(
    steps: list[Step], told: list[float | str]
) -> None:
    scene = Scene()
    await after(steps, scene)
    assert scene.computed == [one if one == 0.0 else scene.relay.first_token_s for one in told]
    assert ("first token" in told) == (scene.relay.first_token_s > 0.0)
    await scene.end()


HAPPENINGS: list[Step] = [
    *(ok(), BUSY, JSON_HEAD, b"{}", STREAM_HEAD, COMMENTS, LAST_CHUNK, b"zz\r\n", b""),
    *(chunk(event) for event in (ROLE, TOKEN, LAST, ABORTED, DONE)),
    *(chunk(TOKEN)[:9], chunk(TOKEN)[9:], chunk(TOKEN + DONE) + LAST_CHUNK),
    *(Scene.lose, Scene.reset, Scene.time_out, Scene.cut, Scene.pause, Scene.resume),
    Scene.release,
]


def told(happening: Step) -> str:
    """A step, in a test's id."""
    return repr(happening[-20:]) if isinstance(happening, bytes) else happening.__name__


@pytest.mark.parametrize("state", AFTER)
@pytest.mark.parametrize("happening", HAPPENINGS, ids=told)
async def test_whatever_else_happens_leads_nowhere_else(state: int, happening: Step) -> None:
    """What would be a pair that the table lacks raises KeyError, here and in service."""
    scene = await at(state)
    await after([happening], scene)
    assert scene.state in reachable(AFTER, state)
    await scene.end()


class Relays(RuleBasedStateMachine):
    """A replica that says anything, in any pieces, and ends in any way."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.scene = self.loop.run_until_complete(at(WAITING))

    @rule(
        state=st.sampled_from(list(AFTER)), may_retry=st.booleans(), minor=st.sampled_from([0, 1])
    )
    def next_request(self, state: int, may_retry: bool, minor: int) -> None:
        self.loop.run_until_complete(self.scene.end())
        self.scene = self.loop.run_until_complete(at(state, may_retry=may_retry, minor=minor))

    @rule(happening=st.sampled_from(HAPPENINGS), cut_at=st.integers(0, 40))
    def happens(self, happening: Step, cut_at: int) -> None:
        steps = [happening]
        if isinstance(happening, bytes):
            steps = [happening[:cut_at], happening[cut_at:]]
        self.loop.run_until_complete(after(steps, self.scene))

    @invariant()
    def the_state_says_it_all(self) -> None:
        scene, relay = self.scene, self.scene.relay
        assert relay.done.done() == (scene.state >= COMPLETE)
        if scene.state in (WAITING, HOLDING, REFUSED, FAILED):
            assert not scene.client.written
        else:
            assert scene.client.written
            assert not relay._held
        if scene.state in (STOPPED, TRUNCATED):
            assert scene.client.ended
            assert not scene.client.written.endswith(b"\n" + LAST_CHUNK)
        assert (relay.error is not None) == (scene.state in (FAILED, TRUNCATED))
        if scene.state in (COMPLETE, REFUSED):
            assert relay.head is not None

    def teardown(self) -> None:
        self.loop.run_until_complete(self.scene.end())
        self.loop.close()


TestRelays = Relays.TestCase
TestRelays.settings = settings(max_examples=150, stateful_step_count=30)

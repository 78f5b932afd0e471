"""A replica leaves the fleet while the body that it was to get is put together in a thread."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from tests.raw import CHAT, Upstream, answering, chat, ok, post, until
from tests.support import Bench, gateway, replicas
from tokenlane.config.settings import ModelSettings, RequestSettings, Settings, Shadow
from tokenlane.fleet_state import FleetState
from tokenlane.telemetry.metrics import families

STRIPPED = Settings(requests=RequestSettings(stripped_fields=("user",)))
SHADOWED = Settings(models=ModelSettings(shadows={"demo": Shadow(to="new", ratio=1.0)}))
REQUEST = post(CHAT, chat("x" * 2_000_000, user="me"))


class HeldThread(ThreadPoolExecutor):
    """The loop's threads: one, which does nothing before it is told to go on."""

    def __init__(self) -> None:
        super().__init__(1)
        self.go_on = threading.Event()
        self.submit(self.go_on.wait)
        asyncio.get_running_loop().set_default_executor(self)

    def waited_for(self) -> bool:
        return self._work_queue.qsize() > 0


def without(state: FleetState, slot: int) -> FleetState:
    staying = tuple(one for one in state.replicas if one.slot != slot)
    return msgspec.structs.replace(state, version=state.version + 1, replicas=staying)


async def chosen(bench: Bench, thread: HeldThread) -> int:
    """The slot of the only request's replica, once the body is waited for."""
    await until(thread.waited_for)
    [record] = bench.gateway.in_hand
    assert record.decision is not None
    return record.decision.choice.slot


@pytest.mark.parametrize("count", [1, 2])
async def test_another_replica_is_chosen_if_there_is_one(count: int) -> None:
    async with Upstream(answering(ok())) as one, Upstream(answering(ok())) as other:
        urls = [one.url, other.url][:count]
        async with gateway(*urls, settings=STRIPPED) as bench:
            thread = HeldThread()
            client = await bench.client()
            await client.send(REQUEST)
            slot = await chosen(bench, thread)
            bench.gateway.update(without(bench.gateway.fleet.state, slot))
            thread.go_on.set()
            answer = await client.answer()
            if count == 1:
                assert (answer.status, answer.error["code"]) == (503, "replicas_down")
                return
            assert answer.status == 200
            assert answer.headers["x-tokenlane-replica"] == urls[1 - slot].partition("://")[2]
            # Nothing was sent to the one that left, so no retry is counted.
            assert bench.metric(families.RETRIES) == 0


async def test_a_shadow_without_its_replica_is_sent_to_nobody() -> None:
    async with Upstream(answering(ok())) as one, Upstream(answering(ok())) as other:
        demo, new = replicas([one.url, other.url]).replicas
        state = FleetState(1, (demo, msgspec.structs.replace(new, models=("new",))))
        async with gateway(settings=SHADOWED, state=state) as bench:
            thread = HeldThread()
            assert (await bench.ask(REQUEST)).status == 200
            await until(thread.waited_for)
            bench.gateway.update(without(state, new.slot))
            thread.go_on.set()
            await until(lambda: bench.metric(families.SHADOWS))
            assert bench.metric(families.SHADOWS, "new", "nobody") == 1

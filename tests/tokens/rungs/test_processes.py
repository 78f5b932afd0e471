"""Tokenizer processes: the ids of any other rung, and nothing left behind."""

import asyncio
import json
import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.raw import until
from tests.support import demo_tokenizer
from tests.tokens.rungs.test_threads import Job
from tokenlane.config.settings import TokenSettings
from tokenlane.errors import RequestError, Unrenderable
from tokenlane.prompt import Prompt, Rung
from tokenlane.protocols.bodies import ChatBody, CompletionBody, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.caches.budgets import CacheBudgets, TokenCaches
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.job import Tokenized, TokenJob
from tokenlane.tokens.ladder import Speed
from tokenlane.tokens.model_tokenizers import LoadedModel, ModelTokenizers
from tokenlane.tokens.rungs import job_frames, process_main
from tokenlane.tokens.rungs.job_frames import LENGTHS, Asked, Made
from tokenlane.tokens.rungs.processes import LostError, ProcessPool
from tokenlane.tokens.service import TokenService

# Nothing is short, and every render is too long for a thread.
TO_PROCESSES: dict[str, Any] = {"thread_hop_s": 0.0, "stall_budget_s": 1e-9}


def body_of(value: dict[str, Any]) -> ChatBody | CompletionBody:
    kind = Kind.CHAT if "messages" in value else Kind.COMPLETION
    body = inspect(kind, json.dumps(value).encode())
    assert isinstance(body, ChatBody | CompletionBody)
    return body


@asynccontextmanager
async def service(processes: int = 1, **fields: Any) -> AsyncIterator[TokenService]:
    settings = TokenSettings(
        processes=processes, folders={"demo": str(demo_folder())}, **TO_PROCESSES, **fields
    )
    made = TokenService(settings, ModelTokenizers({"demo": demo_tokenizer()}), 16)
    try:
        await until(lambda: made.processes.ready_count == processes)
        yield made
        assert made.processes.jobs == 0
        assert made.processes.outstanding_bytes == 0
    finally:
        made.close()
        await until(lambda: not made.processes._children)


BODIES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hello \u00e9 \U0001f30a <|im_end|>"}]},
    {"messages": [{"role": "user", "content": "word " * 20_000}], "add_generation_prompt": False},
    {"prompt": "one"},
    {"prompt": ["one", "two words", ""]},
    {"prompt": [[1, 2], [3]], "cache_salt": "s"},
]


@pytest.mark.parametrize("value", BODIES, ids=lambda value: json.dumps(value)[:40])
async def test_the_same_ids_as_in_this_process(value: dict[str, Any]) -> None:
    plain = TokenService(TokenSettings(), ModelTokenizers({"demo": demo_tokenizer()}), 16)
    async with service() as tokens:
        outcome = await tokens.prompt("demo", body_of(value))
        assert outcome.rung in (Rung.PROCESSES, Rung.TOKEN_INPUT)
        assert outcome.prompt == (await plain.prompt("demo", body_of(value))).prompt
        again = await tokens.prompt("demo", body_of(value))
        assert again.rung is Rung.CACHE
    plain.close()


async def test_refusals_come_back_as_they_were() -> None:
    async with service() as tokens:
        with pytest.raises(RequestError, match="prompt") as refused:
            await tokens.prompt("demo", body_of({"prompt": [1, "a"]}))
        assert refused.value.status == 400
        image = {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}
        outcome = await tokens.prompt("demo", body_of(image))
        assert (outcome.prompt, outcome.rung) == (None, Rung.BAIL)
        assert outcome.reason == "multimodal"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages":[{"role":"user","content":"hi"}],"tool_choice":NaN}',
        b'{"messages":[{"role":"user","content":"hi"}],"kv_transfer_params":{"a":1e400}}',
        b'{"messages":[{"role":"user","content":"hi"}],"tools":[NaN]}',
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"prompt":"one","truncation_side":NaN}',
    ],
)
def test_json_that_only_other_parsers_read_ends_as_in_this_process(
    raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    body = inspect(Kind.CHAT if b"messages" in raw else Kind.COMPLETION, raw)
    assert isinstance(body, ChatBody | CompletionBody)
    model = LoadedModel(demo_tokenizer(), Speed(), TokenCaches.of(CacheBudgets.of(TokenSettings())))
    job = TokenJob(model, body, key=b"", size_bytes=len(raw), block_tokens=16)
    head, payload = job_frames.asked(1, job)
    asked = msgspec.msgpack.decode(head[LENGTHS.size :], type=Asked)
    here, there = job.run(), process_main._tokenized(asked, payload, model)
    assert there.prompt == here.prompt
    assert repr(there.error) == repr(here.error)
    assert not caplog.records


@pytest.mark.parametrize("dispatch", ["p2c", "round-robin"])
async def test_both_processes_take_their_part(dispatch: Any) -> None:
    async with service(2, dispatch=dispatch) as tokens:
        jobs = [tokens.prompt("demo", body_of({"prompt": f"text {n} " * 50})) for n in range(40)]
        outcomes = asyncio.gather(*jobs)
        await asyncio.sleep(0)
        held = [len(child.entries) for child in tokens.processes._children]
        assert sum(held) == 40
        assert min(held) >= 10
        assert all(one.rung is Rung.PROCESSES for one in await outcomes)


async def test_a_result_that_nobody_waits_for_fills_the_cache() -> None:
    async with service() as tokens:
        body = body_of({"prompt": "left " * 5000})
        waiting = asyncio.get_running_loop().create_task(tokens.prompt("demo", body))
        await asyncio.sleep(0)
        assert tokens.processes.jobs == 1
        waiting.cancel()
        await until(lambda: len(tokens.cache) == 1)
        assert (await tokens.prompt("demo", body)).rung is Rung.CACHE


async def test_a_job_that_is_given_up_is_told_of() -> None:
    heard: list[tuple[TokenJob, Tokenized | None]] = []
    pool = ProcessPool(TokenSettings(), lambda *done: heard.append(done))
    job = Job()
    with pytest.raises(LostError):
        await pool.submit(job, 0.1)
    assert heard == [(job, None)]


def sockets() -> set[str]:
    """Our open sockets."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself
            found.add(str(one.readlink()))
    return {name for name in found if name.startswith("socket:")}


async def test_closing_leaves_no_process_and_no_descriptor() -> None:
    before = sockets()
    async with service(2) as tokens:
        pids = [child.process.pid for child in tokens.processes._children if child.process]
        assert len(pids) == 2
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    await until(lambda: sockets() <= before)


@pytest.mark.parametrize(
    "result",
    [
        Tokenized(Prompt((b"\1\0\0\0", b"", b"\2\0\0\0" * 3), b"\7" * 16, 16, 4), None, 0.5),
        Tokenized(None, Unrenderable("multimodal"), 0.1),
        Tokenized(None, RequestError(400, "No.", kind="k", code=7, param="p"), 0.1),
    ],
)
def test_a_result_survives_its_frame(result: Tokenized) -> None:
    head, payload = job_frames.made(9, result)
    assert LENGTHS.unpack_from(head) == (len(head) - LENGTHS.size, len(payload))
    header = msgspec.msgpack.decode(head[LENGTHS.size :], type=Made)
    back = job_frames.result(header)
    assert (header.number, back.prompt, back.seconds) == (9, result.prompt, result.seconds)
    assert type(back.error) is type(result.error)
    if back.error is not None and result.error is not None:
        assert vars(back.error) == vars(result.error)


async def test_a_start_that_the_system_refuses_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Out of descriptors for a while."""
    monkeypatch.setattr("tokenlane.tokens.rungs.processes._RESTART_DELAY_S", 0.01)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = TokenSettings(processes=1, folders={"demo": str(demo_folder())})
    tokenizers = ModelTokenizers({"demo": demo_tokenizer()})
    free = os.dup(0)  # the lowest: with it as the limit there is none, whatever is free above
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        made = TokenService(settings, tokenizers, 16)
        await until(lambda: "could not be started" in caplog.text)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    await until(lambda: made.processes.ready_count == 1)
    made.close()
    await until(lambda: not made.processes._children)

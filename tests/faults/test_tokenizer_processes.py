"""Tokenizer processes that die, hang or crawl: no request is lost, and no count."""

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from tests.raw import until
from tests.tokens.rungs.test_processes import service
from tokenlane.prompt import Rung
from tokenlane.protocols.bodies import CompletionBody, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.rungs import processes
from tokenlane.tokens.service import TokenService


def text(number: int, words: int = 400) -> CompletionBody:
    raw = json.dumps({"prompt": f"{number} " + "some words " * words}).encode()
    body = inspect(Kind.COMPLETION, raw)
    assert isinstance(body, CompletionBody)
    return body


def pids(tokens: TokenService) -> list[int]:
    return [one.process.pid for one in tokens.processes._children if one.process is not None]


@pytest.mark.row("O3")
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_its_jobs_move_on_once(fault: signal.Signals, monkeypatch: Any) -> None:
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.2)
    async with service(2) as tokens:
        jobs = asyncio.gather(*(tokens.prompt("demo", text(n)) for n in range(60)))
        await asyncio.sleep(0)
        assert tokens.processes.jobs == 60
        victim = pids(tokens)[0]
        os.kill(victim, fault)
        outcomes = await jobs
        assert {one.rung for one in outcomes} == {Rung.PROCESSES}
        assert all(one.prompt is not None for one in outcomes)
        await until(lambda: tokens.processes.ready_count == 2)
        assert victim not in pids(tokens)


@pytest.mark.row("O3")
async def test_when_all_die_the_request_goes_on_without_ids() -> None:
    async with service(2) as tokens:
        jobs = asyncio.gather(*(tokens.prompt("demo", text(n)) for n in range(20)))
        await asyncio.sleep(0)
        for pid in pids(tokens):
            os.kill(pid, signal.SIGKILL)
        outcomes = await jobs
        lost = [one for one in outcomes if one.prompt is None]
        assert {one.reason for one in lost} <= {"process-lost"}
        await until(lambda: tokens.processes.ready_count == 2)
        again = await tokens.prompt("demo", text(999))
        assert again.rung is Rung.PROCESSES


@pytest.mark.row("O3")
async def test_under_load_kill_after_kill() -> None:
    async with service(2) as tokens:
        done = 0
        for round_number in range(4):
            start = 1000 * round_number
            jobs = asyncio.gather(*(tokens.prompt("demo", text(start + n)) for n in range(30)))
            await asyncio.sleep(0)
            os.kill(pids(tokens)[0], signal.SIGKILL)
            done += len(await jobs)
            await until(lambda: tokens.processes.ready_count == 2)
        assert done == 120

"""The local rung: a job on the loop, in pieces.

Invariants:
- The permit is held across the whole job. The job runs in pieces no longer than the stall budget,
  and yields to the loop between them: so the permit bounds stall time, not just the number of jobs
  between two awaits.
"""

import asyncio
import time

from tokenlane.telemetry.stalls.stages import AWAITING, TOKENIZE_LOCAL
from tokenlane.tokens.job import Steps, Tokenized, TokenJob


async def run(job: TokenJob, permit: asyncio.Lock, budget_s: float) -> Tokenized:
    """Return the job's result, once it has the permit."""
    queued_s = time.perf_counter()
    with AWAITING[TOKENIZE_LOCAL]:
        await permit.acquire()
    try:
        started_s = time.perf_counter()
        steps = job.steps(piece_limit_s=budget_s)
        made = await _in_slices(steps, started_s, budget_s)
        return made._replace(queue_s=started_s - queued_s)
    finally:
        permit.release()


async def _in_slices(steps: Steps, started_s: float, budget_s: float) -> Tokenized:
    """Run a job's steps, letting the loop breathe whenever the next could exceed the budget."""
    slice_s = started_s
    longest_s = 0.0
    try:
        while True:
            before_s = time.perf_counter()
            next(steps)
            now_s = time.perf_counter()
            longest_s = max(longest_s, now_s - before_s)
            if now_s - slice_s + longest_s > budget_s:
                with AWAITING[TOKENIZE_LOCAL]:
                    await asyncio.sleep(0)
                slice_s = time.perf_counter()
    except StopIteration as end:
        return Tokenized(end.value, None, time.perf_counter() - started_s)
    except Exception as problem:  # noqa: BLE001 - it is the result
        return Tokenized.failed(problem, time.perf_counter() - started_s)

"""Real vLLM proves its ids: every question that is drawn, and its whole vocabulary."""

import asyncio
import time

from tests.support import gateway
from tests.support import replicas as snapshot
from tests.vllm.conftest import Report
from tests.vllm.processes import Server
from tokenlane.fleet_state import ALL_KINDS, Proof
from tokenlane.tokens.tokenizer import Tokenizer

_LIMIT_S = 120.0


async def test_vllm_proves_everything(
    replicas: tuple[Server, Server], tokenizer: Tokenizer, report: Report
) -> None:
    urls = [server.url for server in replicas]
    state = snapshot(urls, models=("tiny",), proofs={})
    tokenizer.model = "tiny"
    async with gateway(state=state, tokenizer=tokenizer, model="tiny") as bench:
        prover = bench.gateway.prover

        def proofs() -> list[Proof]:
            return [prover.trust.proof(slot, "tiny") for slot in range(len(urls))]

        began_s = time.monotonic()
        prover.update(state)
        async with asyncio.timeout(_LIMIT_S):
            while any(  # noqa: ASYNC110 - it spans objects that know no event
                one.proven != ALL_KINDS and not one.refuted for one in proofs()
            ):
                await asyncio.sleep(0.01)
        assert [one.refuted for one in proofs()] == [0, 0], proofs()
        report.add("two replicas proved all kinds of ids", f"{time.monotonic() - began_s:.1f} s")

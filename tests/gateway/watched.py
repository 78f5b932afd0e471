"""A gateway whose replicas are probed as the supervisor probes them, in this process: what is seen
of a replica's process, and what a worker finds out of its ids, comes back to all as a snapshot."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.support import Bench, demo_tokenizer, gateway
from tokenlane.config.settings import ControlSettings, Settings, TokenSettings
from tokenlane.control.fleet_table import FleetTable
from tokenlane.control.probes import open_session, probe
from tokenlane.fleet_state import Proof, ProofNews
from tokenlane.tokens.tokenizer import Tokenizer

INTERVAL_S = 0.1
EVERY = Settings(
    tokens=TokenSettings(forward_tokens="all", check_ratio=0.01, as_text_ratio=0.0),
    control=ControlSettings(probe_interval_s=INTERVAL_S),
)


class Watched:
    """workers: the gateway's. bench: the last of them. table: what is known of its replicas."""

    def __init__(self, table: FleetTable) -> None:
        self.workers: list[Bench] = []
        self.table = table

    @property
    def bench(self) -> Bench:
        return self.workers[-1]

    def publish(self) -> None:
        """Send the snapshot, as the supervisor does."""
        for worker in self.workers:
            worker.gateway.update(self.table.state)
            worker.gateway.prover.update(self.table.state)

    def found(self, news: ProofNews) -> None:
        """Take in what the worker found out."""
        if self.table.proof(news):
            asyncio.get_running_loop().call_soon(self.publish)

    def proof(self, slot: int = 0) -> Proof:
        """What the worker knows of a replica's ids."""
        return self.bench.gateway.prover.trust.proof(slot, "demo")

    def proven(self, slot: int, kinds: int) -> bool:
        """Whether all of these kinds are proven."""
        return self.proof(slot).proven & kinds == kinds


@asynccontextmanager
async def watched(
    *urls: str,
    settings: Settings = EVERY,
    tokenizer: Tokenizer | None = None,
    workers: int = 1,
    **more: Any,
) -> AsyncIterator[Watched]:
    """A gateway in front of replicas that are probed every INTERVAL_S from now on."""
    here = Watched(FleetTable(urls, settings.control))
    table = here.table
    more |= {"state": table.state, "settings": settings, "tokenizer": tokenizer or demo_tokenizer()}
    async with AsyncExitStack() as stack:
        for number in range(workers):
            share = number, workers
            bench = await stack.enter_async_context(gateway(share=share, **more))
            bench.gateway.prover.on_proof = here.found
            here.workers.append(bench)
            here.publish()

        async def look() -> None:
            async with open_session(settings.control) as session:
                while True:
                    for replica in table.replicas:
                        if table.observe(replica.slot, await probe(session, replica.url)):
                            here.publish()
                    await asyncio.sleep(INTERVAL_S)

        task = asyncio.get_running_loop().create_task(look())
        try:
            yield here
        finally:
            task.cancel()
            await asyncio.wait((task,))

"""What the supervisor knows of its gateway so far: it alone writes it, others show it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenlane.channel.ends import SupervisorEnd
from tokenlane.config.settings import Settings
from tokenlane.control.fleet_table import FleetTable
from tokenlane.control.stall_log import StallLog
from tokenlane.control.tokenizers.finder import TokenizerSource
from tokenlane.control.worker_process import WorkerProcess
from tokenlane.control.workers import WorkerPool
from tokenlane.telemetry.load_board import SharedBoard
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.exposition import Totals


@dataclass(slots=True)
class GatewayState:
    """settings: in force. table: of the replicas. totals: of the metrics. board: what is in flight.
    sources: of tokenizers, by model. urls: of the data and the admin port. pool, workers: once they
    are started. probe_failures: by (replica id, reason)."""

    settings: Settings
    table: FleetTable
    totals: Totals
    board: SharedBoard
    sources: dict[str, TokenizerSource]
    urls: tuple[str, str] = ("", "")
    pool: WorkerPool | None = None
    workers: Sequence[WorkerProcess] = ()
    draining: bool = False
    probe_failures: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def doubts(self) -> dict[str, tuple[str, ...]]:
        """Return by model why ids that are made here may differ from vLLM's, as the workers say."""
        return {model: why for worker in self.workers for model, why in worker.doubts.items()}

    @property
    def stalls(self) -> StallLog:
        """Return what the workers told of their stalls."""
        return self.pool.stalls if self.pool is not None else StallLog()

    def answers(self, slot: int) -> int:
        """Return how many requests the replica in this slot has answered whole."""
        replica = self.table.get(slot)
        if replica is None:
            return 0
        return sum(
            int(values[0])
            for (name, labels), values in self.totals.cells().items()
            if name == families.REPLICA_ANSWERS.name and labels[1] == replica.id
        )

    def ends(self) -> list[SupervisorEnd]:
        """Return the channels of the workers that there are."""
        return [worker.end for worker in self.workers if worker.end is not None]

"""What the supervisor knows of its gateway so far: it alone writes it, others show it."""

from collections import Counter
from dataclasses import dataclass, field

from tokenlane.channel.ends import SupervisorEnd
from tokenlane.config.settings import Settings
from tokenlane.control.tokenizers.finder import TokenizerSource
from tokenlane.control.workers import WorkerPool


@dataclass(slots=True)
class GatewayState:
    """settings: in force. urls: of the data and the admin port. sources: of tokenizers, by model.
    pool: the workers, once they are started. probe_failures: by (replica id, reason)."""

    settings: Settings
    sources: dict[str, TokenizerSource]
    urls: tuple[str, str] = ("", "")
    pool: WorkerPool | None = None
    draining: bool = False
    probe_failures: Counter[tuple[str, str]] = field(default_factory=Counter)

    def ends(self) -> list[SupervisorEnd]:
        """Return the channels of the workers that there are."""
        return self.pool.ends if self.pool is not None else []

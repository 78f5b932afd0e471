"""One account of a worker's memory: all that is kept for a request, a text, a name or a peer is in
one of these parts, so that their sum explains what a busy worker has beside an idle one.

Invariants:
- Each part keeps count itself as it grows; nothing is walked here but models, tenants and replicas.
- A part with a limit is never above it.
"""

from typing import Any, NamedTuple

from tokenlane.gateway.request import Gateway
from tokenlane.http.server import HttpServer
from tokenlane.telemetry.queued_writer import QueuedWriter


class Part(NamedTuple):
    """limit_bytes: 0 where the part is bounded otherwise, or not at all by the settings."""

    size_bytes: int
    limit_bytes: int = 0


def memory_parts(
    gateway: Gateway,
    server: HttpServer,
    access: QueuedWriter[Any] | None,
    tracer: QueuedWriter[Any] | None,
) -> dict[str, Part]:
    """Return the parts by name (metric label)."""
    bodies, homes = server.state.body_memory, gateway.kept.homes
    shadows, tokens = gateway.shadows, gateway.tokens
    parts = {
        f"{kind}-cache": Part(budget.size_bytes, budget.limit_bytes)
        for kind, budget in tokens.budgets.by_kind().items()
    }
    # Prompts that wait for a thread are part of bodies that are held.
    parts["tokenizing"] = Part(tokens.threads.queued_bytes, tokens.queue_limit_bytes)
    parts["bodies"] = Part(bodies.held_bytes, bodies.limit_bytes)
    parts["shadows"] = Part(shadows.size_bytes, shadows.limit_bytes)
    parts["heads"] = Part(server.heads_size_bytes, server.heads_limit_bytes)
    # Of so many blocks for each replica: routing.index_limit_blocks.
    for part, size_bytes in gateway.router.sizes_bytes().items():
        parts[f"index-{part}"] = Part(size_bytes)
    parts["responses"] = Part(homes.size_bytes, homes.limit_bytes)
    if gateway.admission_queue is not None:
        parts["parents"] = Part(gateway.admission_queue.admission.parents_size_bytes)
    for name, writer in (("access-log", access), ("traces", tracer)):
        if writer is not None:
            parts[name] = Part(writer.size_bytes, writer.limit_bytes)
    return parts

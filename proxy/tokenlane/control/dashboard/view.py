"""What the control plane shows: startup lines, status, readiness, its own metrics.

Invariants:
- Everything is read from memory when asked for (explanations aside, which a worker gives);
  nothing here changes anything.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tokenlane import __version__
from tokenlane.channel.messages import Explain
from tokenlane.control import fleet_table
from tokenlane.control.dashboard.history import RateHistory
from tokenlane.control.dashboard.live import FleetRow, Live
from tokenlane.control.fleet_table import ADVICE
from tokenlane.control.gateway_state import GatewayState
from tokenlane.control.reload import Reloader
from tokenlane.control.roster import STATIC, Roster
from tokenlane.control.tokenizers.finder import TokenizerSource
from tokenlane.fleet_state import IdKind, adapter_bases
from tokenlane.gateway.model_names import ModelNames
from tokenlane.runtime.build_kind import build_kind
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.exposition import Exposition
from tokenlane.telemetry.metrics.family import Family
from tokenlane.telemetry.metrics.processes import process_samples
from tokenlane.telemetry.metrics.segment import Sample

_PROOF_VALUES = {"proven": 1.0, "unproven": 0.0, "refuted": -1.0}


@dataclass(eq=False)
class View:
    """The gateway as seen from its control plane. more_samples: of the control plane's parts.
    peers: the other gateways and the store, None where nothing is shared."""

    state: GatewayState
    roster: Roster
    reloader: Reloader
    more_samples: Sequence[Callable[[], Iterator[Sample]]] = ()
    peers: Callable[[], FleetRow | None] = lambda: None

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self.watch = RateHistory(self.state)
        self.exposition = Exposition(self.state.totals, self._samples)

    def announce(self, say: Callable[[str], None]) -> None:
        """The lines that greet the operator."""
        settings = self.state.settings
        replicas = self.state.table.replicas
        data, admin = self.state.urls
        workers = settings.server.workers
        say(f"tokenlane {__version__} ({build_kind()}) serves on {data} ({workers} worker(s))")
        say(f"  admin      {admin}  (a page for people; /metrics /readyz /status.json /stalls)")
        say(f"  policy     {settings.routing.policy}")
        for replica in replicas:
            if replica.up:
                serves = ", ".join(replica.models) or "lists no model, so it gets requests for any"
                say(f"  replica    {replica.url}  up  {serves}")
            else:
                seen = self.state.table.probes.get(replica.id)
                why = (seen and seen.told(ADVICE)) or "not looked at yet"
                say(f"  replica    {replica.url}  down: {why}")
        for model, source in self.state.sources.items():
            say(f"  tokenizer  {self._tokenizer(model, source)}")
        served = fleet_table.models(replicas)
        adapters = adapter_bases(replicas)
        for model, reasons in self.state.doubts.items():
            why = "; ".join(reasons)
            say(f"  warning    ids of {model} may differ from vLLM's: {why}")
        for model in served.keys() - self.state.sources.keys():
            if model in adapters:
                say(f"  tokenizer  {model}: that of {adapters[model]}, whose adapter it is")
            else:
                say(f"  tokenizer  {model}: none given, routed by text prefix")
        if served:
            for model in self.state.sources.keys() - served.keys():
                say(f"  warning    no replica that is up serves {model}; is the name right?")
        for name, behind in ModelNames(settings.models).models().items():
            say(f"  name       {name} means {' or '.join(behind)}")
            for model in behind:
                if served and model not in served:
                    say(f"  warning    no replica that is up serves {model}, that {name} means")
        for model, shadow in settings.models.shadows.items():
            say(f"  shadow     {shadow.ratio:.0%} of {model} is copied to {shadow.to}")
        if not any(replica.up for replica in replicas):
            say("  warning    no replica is up yet: requests get 503 until one is")
        elif not all(replica.up for replica in replicas):
            asked = ", their replicas are asked for ids" if settings.tokens.ask_replicas else ""
            say(
                f"  warning    tokenizers of models that come later are not looked for{asked}"
                "; --tokenizer MODEL=DIR names one now, or start again then"
            )

    def _tokenizer(self, model: str, source: TokenizerSource) -> str:
        if source.asked:
            return f"{model}: none found, so its replicas are asked for ids ({source.how})"
        if source.folder is None:
            return (
                f"{model}: none found ({source.how}), routed by text prefix;"
                f" --tokenizer {model}=DIR names its folder"
            )
        engines = [
            engine
            for (name, labels), values in self.state.totals.cells().items()
            if name == families.TOKENIZER_PATH.name and labels[0] == model and values[0]
            for engine in labels[2:]
        ]
        engines = ["chats by its replicas" if one == "replica" else one for one in engines]
        return f"{model} = {source.folder}  ({', '.join([source.how, *engines])})"

    def unready(self) -> str | None:
        """Why the gateway cannot serve; None if it can."""
        if self.state.draining:
            return "The gateway is draining."
        if all(worker.state != "ready" for worker in self.state.workers):
            return "No worker is ready."
        if not any(replica.up and not replica.draining for replica in self.state.table.replicas):
            return "No replica is up."
        return None

    async def explain(self, question: Explain) -> tuple[int, bytes]:
        """Where a request would go, as a worker says. TimeoutError, ConnectionError."""
        if self.state.pool is None:
            raise ConnectionError("no worker is ready")
        return await self.state.pool.explain(question)

    def replicas(self) -> list[dict[str, Any]]:
        """The replicas as JSON, with what this gateway has in flight at each."""
        rows = []
        origins = {member.slot: member.origin for member in self.roster.members}
        for replica in self.state.table.replicas:
            load = self.state.board.load(replica.slot)
            row = msgspec.to_builtins(replica)
            row["origin"] = origins.get(replica.slot, STATIC)
            row["in_flight_requests"] = load.requests
            row["queued_tokens"] = load.queued_tokens
            peers = self.state.board.peers(replica.slot)
            row["peers_in_flight_requests"] = peers.requests
            row["peers_queued_tokens"] = peers.queued_tokens
            row["front_end"] = msgspec.to_builtins(self.watch.front_ends.known.get(replica.id))
            row["ids"] = {
                model: {kind.label: proof.state(kind) for kind in IdKind}
                for model, proof in replica.proofs.items()
            }
            row["ids_why"] = {
                model: proof["why"] for model, proof in row.pop("proofs").items() if proof["why"]
            }
            rows.append(row)
        return rows

    def status(self) -> dict[str, Any]:
        """The gateway as JSON."""
        settings, sources = self.state.settings, self.state.sources
        return {
            "version": __version__,
            "build": build_kind(),
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._began, 3),
            "ready": self.unready() is None,
            "draining": self.state.draining,
            "url": self.state.urls[0],
            "policy": settings.routing.policy,
            "config": self.reloader.row(),
            "tokenizers": {model: one.folder for model, one in sources.items() if one.folder},
            "tokenizer_doubts": self.state.doubts,
            "tokenized_by_replicas": [model for model, one in sources.items() if one.asked],
            "models": fleet_table.models(self.state.table.replicas),
            "fleet_version": self.state.table.state.version,
            "workers": [worker.row() for worker in self.state.workers],
            "accept_queue": {
                "waiting": int(self._total(families.ACCEPT_QUEUE)),
                "refused": int(self._total(families.SHED, families.OTHER, "accept-queue")),
            },
            "replicas": self.replicas(),
            "fleet": self.peers(),
        }

    def _total(self, family: Family, *labels: str) -> float:
        values = self.state.totals.cells().get((family.name, labels))
        return values[0] if values else 0.0

    def live(self) -> Live:
        """What the page shows."""
        return self.watch.live(
            uptime_s=time.monotonic() - self._began,
            unready=self.unready(),
            config=self.reloader.row(),
            fleet=self.peers(),
        )

    def stalls(self) -> dict[str, Any]:
        """The last stalls and how late the loops were, as JSON."""
        return self.state.stalls.view()

    def _samples(self) -> Iterator[Sample]:
        """The control plane's own families, for the collector."""
        for row in self.replicas():
            labels = (row["id"],)
            yield families.REPLICA_UP, labels, [float(row["up"])]
            yield families.IN_FLIGHT, labels, [float(row["in_flight_requests"])]
            yield families.QUEUED_TOKENS, labels, [float(row["queued_tokens"])]
            if row["block_tokens"] is not None:  # its /metrics was read, and is vLLM's
                yield families.REPLICA_RUNNING, labels, [float(row["running"])]
                yield families.REPLICA_WAITING, labels, [float(row["waiting"])]
                yield families.REPLICA_KV_USAGE, labels, [row["kv_usage"]]
                starved = bool(row["front_end"] and row["front_end"]["starved"])
                yield families.FRONT_END_STARVED, labels, [float(starved)]
            for model, kinds in row["ids"].items():
                for kind, standing in kinds.items():
                    yield families.ID_PROOFS, (model, row["id"], kind), [_PROOF_VALUES[standing]]
        doubts = self.state.doubts
        for model, source in self.state.sources.items():
            if source.folder is not None:
                count = float(len(doubts.get(model, ())))
                yield families.TOKENIZER_DOUBTS, (model,), [count]
        for failure, count in self.state.probe_failures.items():
            yield families.PROBE_FAILURES, failure, [float(count)]
        for state, count in Counter(worker.state for worker in self.state.workers).items():
            yield families.WORKERS, (state,), [float(count)]
        restarts = sum(worker.restarts for worker in self.state.workers)
        yield families.WORKER_RESTARTS, (), [float(restarts)]
        yield from process_samples("supervisor", os.getpid())
        for worker in self.state.workers:
            if worker.pid:
                yield from process_samples(f"worker-{worker.number}", worker.pid)
        for more in (self.reloader.samples, *self.more_samples):
            yield from more()
        yield families.BUILD, (__version__, build_kind()), [1.0]

"""What the live page and `tokenlane top` show: the words of `/live.json` and `/hour.json`.

Invariants:
- Times are seconds, sizes tokens, shares 0..1; what is not known is null, never 0.
- Fields are only ever added: a page or a `top` of another version reads what it knows.
"""

import msgspec

from tokenlane.control.reload import ConfigRow
from tokenlane.telemetry.routing_sample import RoutingFacts


class Numbers(msgspec.Struct, kw_only=True):
    """The gateway as a whole. late_…: of the workers' loops, the worst exact. hit_rate: share of
    the prompt tokens that the replicas found in their caches. predicted_ratio: cached tokens as
    foreseen, for each that an answer reported."""

    requests_per_s: float = 0.0
    failed_per_s: float = 0.0
    in_flight: int = 0
    queued_tokens: int = 0
    connections: int = 0
    input_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    hit_rate: float | None = None
    predicted_ratio: float | None = None
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p50_s: float | None = None
    late_p99_s: float | None = None
    late_worst_s: float | None = None


class ReplicaRow(msgspec.Struct, kw_only=True):
    """A replica. cache_tokens: its KV cache's size, hit_rate: its prefix cache's, both its own.
    ids: whether it has proven that it makes the gateway's ids, in words (`rows.ids`).
    peers_in_flight: of the other gateways, as far as they said. since_s: it is in this state
    since then (Unix time; null: since before this gateway); why: of a state other than up.
    times_slower: than all replicas of its model, where that is much. starved: its requests wait
    for its front end. Rates and ttft_p50_s: of this gateway's requests there."""

    id: str
    state: str
    models: list[str] = []
    in_flight: int = 0
    queued_tokens: int = 0
    peers_in_flight: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    cache_tokens: int | None = None
    hit_rate: float | None = None
    ids: str = ""
    since_s: float | None = None
    why: str = ""
    requests_per_s: float = 0.0
    failed_per_s: float = 0.0
    ttft_p50_s: float | None = None
    times_slower: float | None = None
    starved: bool = False


class Flow(msgspec.Struct, kw_only=True):
    """A replica's last hour, by the words of ReplicaRow: one point every period, the newest
    last."""

    requests_per_s: list[float | None] = []
    failed_per_s: list[float | None] = []
    ttft_p50_s: list[float | None] = []
    hit_rate: list[float | None] = []


class Hour(msgspec.Struct, kw_only=True):
    """The words of `/hour.json`. flows: by replica, in the order of the page."""

    period_s: float
    flows: dict[str, Flow]


class SavedRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the replicas' prefix caches saved. tokens: prompt tokens found there since the replicas
    started. prefill_s: how long computing these would have taken. replicas: as many as would do
    nothing but that, in the window."""

    tokens: int | None = None
    prefill_s: float | None = None
    replicas: float | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the gateway is healthy, as a sentence. level: good, warn or bad."""

    text: str = ""
    level: str = "good"


class EventRow(msgspec.Struct, kw_only=True):
    """Something that happened. at_s: Unix time. count: of those like it, at_s being that of the
    first; 0 where it stands for itself."""

    at_s: float
    text: str
    level: str
    count: int = 0


class WorkerRow(msgspec.Struct, kw_only=True):
    """A data loop and how late it was."""

    worker: int
    state: str
    pid: int = 0
    restarts: int = 0
    late_p50_s: float | None = None
    late_p99_s: float | None = None
    late_worst_s: float | None = None


class StallRow(msgspec.Struct, kw_only=True):
    """What held the loops: in the window, and since the start. worst_s: the longest of the last
    minute."""

    cause: str
    count: float
    total: float
    worst_s: float | None = None


class RungRow(msgspec.Struct, kw_only=True):
    """A rung of the ladder. share: of all requests in the window; p50_s, p99_s: its work."""

    rung: str
    per_s: float
    share: float | None
    p50_s: float | None
    p99_s: float | None


class ModelRow(msgspec.Struct, kw_only=True):
    """A model's answers."""

    model: str
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    input_tokens_per_s: float
    output_tokens_per_s: float


class Count(msgspec.Struct, kw_only=True):
    """A word and how often it was said in the window."""

    word: str
    count: float
    share: float | None


class CandidateRow(msgspec.Struct, kw_only=True):
    """A replica as a decision saw it. others: how many of the requests other gateways sent."""

    replica: str
    cached_tokens: int
    requests: int
    queued_tokens: int
    cost: float
    others: int = 0


class DecisionRow(RoutingFacts, frozen=True, kw_only=True):
    """A request that was routed. number: ascending, to tell new from seen."""

    number: int
    replica: str
    why: str
    candidates: list[CandidateRow]


class SettingRow(msgspec.Struct, kw_only=True):
    """A setting in force. value: as JSON text."""

    path: str
    value: str
    is_default: bool


class PeerRow(msgspec.Struct, kw_only=True):
    """Another gateway. seen_s: how long ago. clock_skew_s: by how much its clock is ahead of ours.
    unknown_replicas: those it has something in flight at, and this gateway does not know."""

    name: str
    version: str
    seen_s: float
    in_flight: int
    queued_tokens: int
    clock_skew_s: float | None
    unknown_replicas: int


class FleetRow(msgspec.Struct, kw_only=True):
    """The gateways that share their load. store: `up`, or what is wrong with it. name: the
    fleet's."""

    name: str
    store: str
    peers: list[PeerRow]


class Live(msgspec.Struct, kw_only=True):
    """All of it. window_s: what rates and quantiles are over. series: by name, one point every
    period_s seconds, the newest last. events: of the last hour, the newest first. doubts: by model,
    why its ids may differ from vLLM's. forwarded: prompts by what replicas got, ids or text;
    as_text: those sent as text, by why."""

    version: str
    url: str
    policy: str
    at_s: float
    uptime_s: float
    unready: str | None
    window_s: float
    period_s: float
    now: Numbers
    series: dict[str, list[float | None]]
    replicas: list[ReplicaRow]
    workers: list[WorkerRow]
    stalls: list[StallRow]
    rungs: list[RungRow]
    reasons: list[Count]
    bails: list[Count]
    forwarded: list[Count] = []
    as_text: list[Count] = []
    models: list[ModelRow]
    decisions: list[DecisionRow]
    settings: list[SettingRow]
    config: ConfigRow | None = None
    fleet: FleetRow | None = None
    saved: SavedRow = SavedRow()
    verdict: Verdict = Verdict()
    events: list[EventRow] = []
    doubts: dict[str, tuple[str, ...]] = {}

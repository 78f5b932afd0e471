"""Settings: frozen after load, units in the names, defaults that serve.

Invariants:
- Types, names and defaults only: how they are read is tokenlane.config.loading's matter, what flags
  and variables they have is tokenlane.config.options'.
"""

from datetime import datetime
from typing import Annotated, Literal

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings."""


Count = Annotated[int, msgspec.Meta(ge=0)]


class ServerSettings(Section, frozen=True):
    """The data port: where it listens and what one connection may cost. tls_…: a certificate
    chain and its key in PEM; with them the port speaks TLS alone. trusted_peers: networks (CIDR)
    whose `Forwarded` and `X-Forwarded-…` fields replicas get; of others they are dropped.
    bodies_limit_bytes: of all bodies held at once, workers sharing it evenly (0: any); beyond it,
    and while more than `memory_limit_ratio` of the cgroup's memory is used (0: never), a request
    that brings a body gets 503 before it is read. share_port: another gateway of the same user may
    serve on the port too, as while one takes over from the other. orphan_s: so long workers whose
    supervisor died serve on, unless a new one takes over; then they drain. cors_origins: of pages
    that browsers let ask, `*` for all. accept_wait_limit_s: while more clients connect than can be
    served, who waited so long to be accepted gets 503 (0: waits on)."""

    host: str = "127.0.0.1"
    port: int = 8080
    share_port: bool = False
    workers: int = 1
    head_limit_bytes: int = 64 * 1024
    header_limit_count: int = 128
    target_limit_bytes: int = 8 * 1024
    body_limit_bytes: int = 32 * 1024 * 1024
    bodies_limit_bytes: Count = 1024 * 1024 * 1024
    memory_limit_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.9
    pipelined_limit_bytes: int = 64 * 1024
    write_high_water_bytes: int = 256 * 1024
    accept_wait_limit_s: Annotated[float, msgspec.Meta(ge=0)] = 0.05
    idle_deadline_s: float = 75.0
    head_deadline_s: float = 10.0
    body_deadline_s: float = 60.0
    write_stall_deadline_s: float = 120.0
    drain_deadline_s: float = 30.0
    drain_linger_s: float = 1.0
    orphan_s: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    tls_cert_file: str = ""
    tls_key_file: str = ""
    trusted_peers: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()


class AdminSettings(Section, frozen=True):
    """The admin port (control plane). token_file: holds what changes over it have to show (else
    TOKENLANE_ADMIN_TOKEN); without either nothing can be changed there. read_needs_token: so do
    all requests but those for /livez and /readyz. hosts: names that it may be asked under, besides
    localhost, addresses and `host`."""

    host: str = "127.0.0.1"
    port: int = 8081
    token_file: str = ""
    read_needs_token: bool = False
    hosts: tuple[str, ...] = ()


class UpstreamSettings(Section, frozen=True):
    """Connections to replicas. `idle_deadline_s` must stay below the replica's keep-alive
    (vLLM: 5 s), or requests race with its close. `retry_budget_ratio`: attempts beyond the first
    per request, in the long run; `retry_budget_burst_count` may be saved up. api_key_file: holds
    the key that replicas are shown in the place of clients' (else TOKENLANE_UPSTREAM_API_KEY).
    tls_…: for https:// backends, PEM: whom to believe, and what to show."""

    connect_deadline_s: float = 2.0
    first_byte_deadline_s: float = 600.0
    between_chunks_deadline_s: float = 120.0
    idle_deadline_s: float = 4.0
    idle_limit_count: int = 256
    head_limit_bytes: int = 64 * 1024
    retry_limit_count: int = 2
    retry_unanswered: bool = False
    retry_budget_ratio: float = 0.2
    retry_budget_burst_count: int = 20
    api_key_file: str = ""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""


class TokenSettings(Section, frozen=True):
    """The ladder.

    folders: model name -> folder with tokenizer.json. discover: look for other models' tokenizers
    where the replica says the model is, and in the local hub cache. fetch: and from the hub, what
    has a name there, before anything is served. ask_replicas: where a tokenizer is found nowhere,
    and where vLLM renders with code of its own, ask replicas (`/tokenize`) for a prompt's ids, at
    most ask_limit_count at once in a worker, each for ask_deadline_s. fast_engines: fastokens and
    minijinja, where a probe shows them equal to the reference. cache_limit_bytes: what a worker
    (and each tokenizer process) remembers of prompts of all models: whole requests, beginnings,
    stretches of text, how conversations render, words; each kind has a fixed part of it.
    cache_entry_limit_bytes: of one entry, which takes no more than a sixteenth of its kind's part.
    threads: 0 for as many as cores, at least 2, at most 8. processes: tokenizer processes, for jobs
    that would hold the GIL too long and for when the threads have all they take;
    process_limit_bytes: prompts under way in each. short_lane_s: jobs predicted shorter than this
    never wait behind longer ones. thread_hop_s: what it costs to hand a job to a thread and wake up
    for its result; shorter ones run on the loop. forward_tokens: which requests' ids go to the
    replica instead of their text, so that it need not tokenize again; as_text_ratio: of these,
    how many go as text nevertheless, so that the replica counts them itself. check_ratio: of all
    whose ids are known, how many are asked about afterwards. context_check: refuse
    what no replica has room for. needed_wait_s: a prompt that may be too long waits so long for its
    ids where the ladder is full, and is then turned away. Where nothing wants ids, the policy
    included, none are made.
    """

    folders: dict[str, str] = {}
    discover: bool = True
    ask_replicas: bool = True
    ask_deadline_s: Annotated[float, msgspec.Meta(gt=0)] = 2.0
    ask_limit_count: Count = 16
    fetch: bool = True
    fetch_deadline_s: float = 60.0
    fast_engines: bool = True
    cache_limit_bytes: Count = 192 * 1024 * 1024
    cache_entry_limit_bytes: Count = 8 * 1024 * 1024
    threads: int = 0
    queue_limit_jobs: int = 256
    queue_limit_bytes: int = 64 * 1024 * 1024
    queue_wait_limit_s: float = 1.0
    processes: int = 0
    process_limit_bytes: int = 32 * 1024 * 1024
    dispatch: Literal["p2c", "round-robin"] = "p2c"
    short_lane_s: float = 0.001
    thread_hop_s: float = 0.0003
    stall_budget_s: float = 0.002
    fallback: Literal["wait", "bail"] = "bail"
    context_check: bool = True
    needed_wait_s: float = 10.0
    forward_tokens: Literal["off", "completions", "all"] = "completions"
    as_text_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    check_ratio: Annotated[float, msgspec.Meta(ge=0, le=0.01)] = 0.005


class Price(Section, frozen=True):
    """What a model's tokens cost, in one currency unit per million. Prompt tokens that the
    replica had cached cost `cached_input_per_million`."""

    input_per_million: float = 0.0
    cached_input_per_million: float = 0.0
    output_per_million: float = 0.0


class RoutingSettings(Section, frozen=True):
    """The policy.

    replica_limit_count: most requests in flight to a replica; 0: any.
    alpha, idle_alpha: what a queued token counts beside an own one, while all replicas are busy and
    while all are idle. sibling_alpha: in the place of idle_alpha while other requests are in flight
    that the same parent waits for. session_headers, parent_headers: those that name a session, and
    who waits for a request; the first that is there counts.
    head_limit_tokens: what prefix-hash hashes where it does not know where a prompt's common
    beginning ends. load_factor: policies that hash give no replica more than so many times its
    share of the requests. block_tokens: 0 for as the replicas report it. cache_blocks: KV blocks of
    each replica that does not report them; 0: unknown. tenant_keep_s: what a tenant used so lately
    stays known, up to its share, whatever other tenants send; 0: it goes by age alone.
    refused_out_s: how long a replica that refused a connection is left out unless a probe clears
    it. host_block_worth: what a cached block in memory other than the GPU's is worth of one on the
    GPU, 0 to 1.
    """

    policy: str = "affinity"
    alpha: float = 0.1
    idle_alpha: float = 0.5
    sibling_alpha: float = 1.0
    session_headers: tuple[str, ...] = ("x-session-affinity",)
    parent_headers: tuple[str, ...] = ("x-correlation-id",)
    head_limit_tokens: int = 2048
    load_factor: float = 1.25
    replica_limit_count: Count = 0
    block_tokens: int = 0
    cache_blocks: int = 0
    index_limit_blocks: int = 1_000_000
    tenant_keep_s: Annotated[float, msgspec.Meta(ge=0)] = 120.0
    refused_out_s: float = 2.0
    host_block_worth: float = 0.9

    def __post_init__(self) -> None:
        if self.load_factor < 1:
            raise ValueError("load_factor must be at least 1")
        if not 0 <= self.alpha <= self.idle_alpha <= 1:
            raise ValueError("alpha and idle_alpha must be 0 <= alpha <= idle_alpha <= 1")
        if not self.alpha <= self.sibling_alpha <= 1:
            raise ValueError("sibling_alpha must be alpha <= sibling_alpha <= 1")


class KvSource(Section, frozen=True):
    """Where one replica publishes its KV events (ZMQ): rank r at the ports plus r. bind: listen
    there, because the replica connects to it."""

    endpoint: str
    replay_endpoint: str = ""
    topic: str = ""
    data_parallel_ranks: int = 1
    bind: bool = False


class KvEventSettings(Section, frozen=True):
    """KV events. discover: ask replicas where they publish (`/kv_event_sources`). sources: by the
    backend's URL, for those that do not say. check_interval_s: after so long without a message
    a publisher is asked whether there was one; two answers later than answer_deadline_s and it
    counts as silent. flush_interval_s: changes are collected for so long before workers are told.
    """

    discover: bool = True
    sources: dict[str, KvSource] = {}
    check_interval_s: float = 5.0
    answer_deadline_s: float = 2.0
    flush_interval_s: float = 0.01


class HealthSettings(Section, frozen=True):
    """When a replica that probes call up is left out for failing its requests: after so many
    failures in a row, for `ejection_s` times the ejections in a row (up to `ejection_limit_s`),
    but never more than a share of the replicas. One that comes back, or restarted, gets its share
    of the requests by degrees over `slow_start_s` (0: at once)."""

    failure_limit_count: int = 5
    ejection_s: float = 30.0
    ejection_limit_s: float = 300.0
    ejection_limit_ratio: float = 0.5
    slow_start_s: float = 10.0


class ControlSettings(Section, frozen=True):
    """Probes and scrapes of the replicas."""

    probe_interval_s: float = 1.0
    probe_deadline_s: float = 2.0
    fall_count: int = 2
    rise_count: int = 1


class DiscoverySettings(Section, frozen=True):
    """Where replicas are found besides `backends`.

    file: YAML or JSON, a list of URLs, read when it changes. dns: names whose addresses are
    replicas, http://NAME:PORT; without a port, http://_SERVICE._tcp.NAME by its SRV records.
    dns_absence_limit_count: answers in a row that may lack an address before it leaves.
    kubernetes_service: NAMESPACE/SERVICE, whose endpoint slices are watched; kubernetes_port: the
    name or number of its port, the first one if empty. The other kubernetes_…: the API server, as
    a pod finds it.
    """

    file: str = ""
    dns: tuple[str, ...] = ()
    dns_interval_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    dns_deadline_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    dns_absence_limit_count: Count = 2
    dns_servers: tuple[str, ...] = ()
    kubernetes_service: str = ""
    kubernetes_port: str = ""
    kubernetes_scheme: Literal["http", "https"] = "http"
    kubernetes_url: str = "https://kubernetes.default.svc"
    kubernetes_token_file: str = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    kubernetes_ca_file: str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"

    @property
    def on(self) -> bool:
        """Whether there is any source."""
        return bool(self.file or self.dns or self.kubernetes_service)


class LogSettings(Section, frozen=True):
    """The access log: a line for a request, written beside the loop.

    access: stdout, stderr, off, or a file. format: auto is text on a terminal, else JSON. What
    failed, or took `slow_s` to its first token (its end, if it does not stream), is always
    written; of the rest a share of `sample_ratio`. queue_limit_lines: beyond it lines are dropped.
    prefix_block_tokens: a line names its prompt's beginning, by a hash for each so many tokens, so
    that the log can be replayed; 0: it does not.
    """

    access: str = "stdout"
    format: Literal["auto", "json", "text"] = "auto"
    sample_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    slow_s: float = 10.0
    queue_limit_lines: Annotated[int, msgspec.Meta(ge=1)] = 8192
    prefix_block_tokens: Count = 0


class StallSettings(Section, frozen=True):
    """The stall monitor. beat_s: between the heartbeats of a working loop, which is woken for one
    after three times that; idle_beat_s: of one with little to do. threshold_s: a beat this late is
    a stall, and charged to a cause."""

    beat_s: float = 0.005
    idle_beat_s: float = 0.020
    threshold_s: float = 0.002


class TracingSettings(Section, frozen=True):
    """OpenTelemetry traces (needs the extra `otel`).

    endpoint: base URL of a collector that takes OTLP over HTTP, as http://collector:4318; empty:
    off. sample_ratio: of the traces that begin here; what a client began is recorded as it says.
    """

    endpoint: str = ""
    service_name: str = "tokenlane"
    sample_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    queue_limit_count: Annotated[int, msgspec.Meta(ge=1)] = 4096


class Key(Section, frozen=True):
    """A client's key, known by its digest: SHA-256 in hexadecimal. tenant: whose it is. expires:
    from then on it is refused; with a zone, as 2027-01-31T00:00:00Z."""

    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    tenant: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class Tenant(Section, frozen=True):
    """What a tenant may have at once (0: any): requests, and prompt tokens not computed yet.
    priority: of two that wait, the better class goes first."""

    concurrency_limit_count: Count = 0
    queued_limit_tokens: Count = 0
    priority: Literal["interactive", "standard", "batch"] = "standard"


class AuthSettings(Section, frozen=True):
    """Keys of clients. Without any, all may come in. keys_file: YAML, a list of more of them.
    tenants: what each may have, by name."""

    keys: tuple[Key, ...] = ()
    keys_file: str = ""
    tenants: dict[str, Tenant] = {}


class AdmissionSettings(Section, frozen=True):
    """What the gateway takes on at once (0: any): requests, and prompt tokens that replicas have
    not computed yet, guessed by the size of bodies. More wait, so many and so long. Workers share
    the limits evenly. Tenants have limits of their own (`auth.tenants`). long_prompt_tokens: what
    is guessed longer waits in class batch, whoever asks; 0: nothing. sibling_lead_s: what a parent
    waits for (`routing.parent_headers`) counts as having come with the first of it, so much
    earlier at most; 0: all in the order they came."""

    concurrency_limit_count: Count = 0
    queued_limit_tokens: Count = 0
    queue_limit_count: Annotated[int, msgspec.Meta(ge=1)] = 1000
    queue_deadline_s: float = 5.0
    long_prompt_tokens: Count = 0
    sibling_lead_s: Annotated[float, msgspec.Meta(ge=0)] = 5.0


class RequestSettings(Section, frozen=True):
    """What bodies may not ask of replicas. stripped_fields: dropped; refused_fields: 400.
    output_limit_tokens, choice_limit_count: what asks for more (`n`, `best_of`) gets so many."""

    stripped_fields: tuple[str, ...] = ()
    refused_fields: tuple[str, ...] = ()
    output_limit_tokens: Count = 0
    choice_limit_count: Count = 0


class Shadow(Section, frozen=True):
    """A copy of some requests for another model. ratio: of the conversations."""

    to: str
    ratio: Annotated[float, msgspec.Meta(gt=0, le=1)]


class ModelSettings(Section, frozen=True):
    """Models under other names. aliases: the model that a name means. splits: the models that
    share a name's conversations, by weight. shadows: by model, who gets copies of its requests;
    nobody waits for what becomes of them. shadow_limit_...: of copies under way in each worker."""

    aliases: dict[str, str] = {}
    splits: dict[str, dict[str, Annotated[float, msgspec.Meta(ge=0)]]] = {}
    shadows: dict[str, Shadow] = {}
    shadow_limit_count: Count = 32
    shadow_limit_bytes: Count = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in self.splits:
            if name in self.aliases:
                raise ValueError(f"{name} cannot be an alias and a split")
            if not any(self.splits[name].values()):
                raise ValueError(f"the split {name} needs a model with a weight above 0")
        for name, model in self.aliases.items():
            if model in self.aliases:
                raise ValueError(f"the alias {name} must name a model or a split, not an alias")
        for name, weights in self.splits.items():
            for model in weights:
                if model in self.aliases or (model in self.splits and model != name):
                    raise ValueError(f"the split {name} must be of models, and {model} is a name")
        for model, shadow in self.shadows.items():
            if shadow.to == model:
                raise ValueError(f"{model} cannot be its own shadow")
            if shadow.to in self.aliases or shadow.to in self.splits:
                raise ValueError(f"the shadow of {model} must go to a model, not to another name")


class Settings(Section, frozen=True):
    """Everything. `backends`: base URLs of the replicas. `prices`: by model name."""

    backends: tuple[str, ...] = ()
    server: ServerSettings = ServerSettings()
    admin: AdminSettings = AdminSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    auth: AuthSettings = AuthSettings()
    admission: AdmissionSettings = AdmissionSettings()
    requests: RequestSettings = RequestSettings()
    models: ModelSettings = ModelSettings()
    tokens: TokenSettings = TokenSettings()
    routing: RoutingSettings = RoutingSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    control: ControlSettings = ControlSettings()
    kv_events: KvEventSettings = KvEventSettings()
    log: LogSettings = LogSettings()
    health: HealthSettings = HealthSettings()
    stalls: StallSettings = StallSettings()
    tracing: TracingSettings = TracingSettings()
    prices: dict[str, Price] = {}

"""The settings: a field is a setting, and everything about one is in its line.

    idle_deadline_s: Annotated[Seconds, live("idle connections are closed after this")] = 75.0

Invariants:
- Frozen after load, units in the names, defaults that serve.
- A setting is defined once. Its flag, its variable, the schema, the pages and what a reload puts in
  force are read off the field (tokenlane.config.options); msgspec checks its range at load.
- Every setting is `live` or `restart`: the import fails for one that is neither.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tokenlane.config.secret import (
    ADMIN_TOKEN_VARIABLE,
    REPLICA_KEY_VARIABLE,
    STORE_PASSWORD_VARIABLE,
)

KIB = 1024
MIB = 1024 * KIB
# Of processes of a kind.
WORKER_LIMIT = 64
THREAD_LIMIT = 256
RANK_LIMIT = 64
_POD = "/var/run/secrets/kubernetes.io/serviceaccount"

Words = tuple[str, ...]
Count = Annotated[int, Meta(ge=0)]
CountFromOne = Annotated[int, Meta(ge=1)]
Jobs = Annotated[int, Meta(ge=0, extra={"unit": "jobs"})]
Bytes = Annotated[int, Meta(ge=0, extra={"unit": "bytes"})]
BytesPerSecond = Annotated[int, Meta(ge=0, extra={"unit": "bytes per second"})]
Tokens = Annotated[int, Meta(ge=0, extra={"unit": "tokens"})]
Blocks = Annotated[int, Meta(ge=0, extra={"unit": "blocks"})]
# Longer than any gateway runs, and no timer's own limit.
_LONGEST_S = 1_000_000_000
Seconds = Annotated[float, Meta(ge=0, le=_LONGEST_S, extra={"unit": "seconds"})]
SecondsAboveZero = Annotated[float, Meta(gt=0, le=_LONGEST_S, extra={"unit": "seconds"})]
# Between rounds that would otherwise leave the loop no pause.
IntervalSeconds = Annotated[float, Meta(ge=0.05, le=_LONGEST_S, extra={"unit": "seconds"})]
NotNegative = Annotated[float, Meta(ge=0)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Host = Annotated[str, Meta(extra={"metavar": "H"})]
Port = Annotated[int, Meta(ge=0, le=65535, extra={"metavar": "P"})]
File = Annotated[str, Meta(extra={"metavar": "FILE"})]


def live(about: str, *flags: str, **more: str) -> Meta:
    """Describe a setting that a reload puts in force. flags: those that people type instead of the
    one made from its path; the first names its variable too. more: metavar, where the type does
    not give it."""
    return Meta(extra={"help": about, "live": True, "own_flags": flags, **more})


def restart(about: str, *flags: str, **more: str) -> Meta:
    """Describe a setting that only a restart puts in force; otherwise as `live`."""
    return Meta(extra={"help": about, "live": False, "own_flags": flags, **more})


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings."""

    def conflicts(self) -> Iterator[str]:
        """Yield a sentence for each setting that does not go with the others, its name first."""
        yield from ()

    def __post_init__(self) -> None:
        for conflict in self.conflicts():
            raise ValueError(conflict)


# A table: a setting takes one line, or two if its help needs them.
# fmt: off
class ServerSettings(Section, frozen=True):
    """The data port: where it listens and what one connection may cost."""

    host: Annotated[Host, restart(
        "address of the data port; :: is IPv6 alone", "--host")] = "127.0.0.1"
    port: Annotated[Port, restart("data port; 0 picks one", "--port")] = 8080
    share_port: Annotated[bool, restart(
        "another gateway of the same user may serve on the data port too, and take over")] = False
    workers: Annotated[int, Meta(ge=1, le=WORKER_LIMIT), restart(
        "data plane processes", "--workers")] = 1
    head_limit_bytes: Annotated[Bytes, live("largest head of a request")] = 64 * KIB
    header_limit_count: Annotated[Count, live("most header fields of a request")] = 128
    target_limit_bytes: Annotated[Bytes, live("longest path with its query")] = 8 * KIB
    body_limit_bytes: Annotated[Bytes, live("largest body of a request")] = 32 * MIB
    bodies_limit_bytes: Annotated[Bytes, restart(
        "most bytes of bodies held at once, by all workers; more gets 503; 0: any")] = 1024 * MIB
    memory_limit_ratio: Annotated[Ratio, restart(
        "share of the cgroup's memory above which bodies get 503; 0: any")] = 0.9
    pipelined_limit_bytes: Annotated[Bytes, live(
        "most bytes held of requests behind the one being served")] = 64 * KIB
    write_high_water_bytes: Annotated[Bytes, live(
        "unsent bytes of an answer above which its replica waits")] = 256 * KIB
    accept_wait_limit_s: Annotated[Seconds, restart(
        "in overload, clients that waited this long to be accepted get 503; 0: all wait")] = 0.05
    idle_deadline_s: Annotated[Seconds, live("closes idle client connections")] = 75.0
    head_deadline_s: Annotated[Seconds, live("time for a request's head to arrive")] = 10.0
    body_deadline_s: Annotated[Seconds, live("time for a request's body to arrive")] = 60.0
    write_stall_deadline_s: Annotated[Seconds, live("a client may read nothing this long")] = 120.0
    drain_deadline_s: Annotated[Seconds, live("time running requests have at a stop")] = 30.0
    drain_linger_s: Annotated[Seconds, live("at a stop, idle connections serve this long")] = 1.0
    orphan_s: Annotated[Seconds, live("workers outlive a supervisor by this, then drain")] = 60.0
    tls_cert_file: Annotated[File, restart(
        "certificate chain of the data port (PEM); it then speaks TLS alone")] = ""
    tls_key_file: Annotated[File, restart("its key (PEM), if not in the same file")] = ""
    trusted_peers: Annotated[Words, live("networks whose forwarded headers pass (CIDR)")] = ()
    cors_origins: Annotated[Words, restart(
        "pages of these origins may ask, as https://app.example; * for all")] = ()


class AdminSettings(Section, frozen=True):
    """The admin port (control plane). Without a token nothing can be changed there."""

    host: Annotated[Host, restart(
        "address of the admin port; :: is IPv6 alone", "--admin-host")] = "127.0.0.1"
    port: Annotated[Port, restart("admin port; 0 picks one", "--admin-port")] = 8081
    token_file: Annotated[File, live(
        f"file with the token for changes (or set {ADMIN_TOKEN_VARIABLE})")] = ""
    read_needs_token: Annotated[bool, live("reading needs it, but for /livez and /readyz")] = False
    hosts: Annotated[Words, live(
        "further names under which the admin port may be asked, as gateway.example")] = ()


class UpstreamSettings(Section, frozen=True):
    """Connections to replicas."""

    connect_deadline_s: Annotated[Seconds, live("time to connect to a replica")] = 2.0
    first_byte_deadline_s: Annotated[Seconds, live("time until a replica begins to answer")] = 600.0
    between_chunks_deadline_s: Annotated[Seconds, live(
        "longest pause inside an answer, or in taking a request")] = 120.0
    idle_deadline_s: Annotated[Seconds, live(
        "closes idle connections to replicas; keep it below their keep-alive (vLLM: 5 s)")] = 4.0
    idle_limit_count: Annotated[Count, live("most idle connections kept to each replica")] = 256
    head_limit_bytes: Annotated[Bytes, live("largest head of an answer")] = 64 * KIB
    retry_limit_count: Annotated[Count, live("most further replicas tried for a request")] = 2
    retry_unanswered: Annotated[bool, live("retry what a replica may have begun")] = False
    retry_budget_ratio: Annotated[NotNegative, live(
        "retries allowed, as a share of requests")] = 0.2
    retry_budget_burst_count: Annotated[Count, live("retries allowed beside that share")] = 20
    api_key_file: Annotated[File, live(
        f"file with the key shown to replicas (or set {REPLICA_KEY_VARIABLE})")] = ""
    tls_ca_file: Annotated[File, live("CAs of replicas' certificates, PEM; else the system's")] = ""
    tls_cert_file: Annotated[File, live("certificate shown to replicas (PEM)")] = ""
    tls_key_file: Annotated[File, live("its key (PEM), if not in the same file")] = ""


class TokenSettings(Section, frozen=True):
    """The ladder. Where nothing wants ids, the policy included, none are made."""

    folders: Annotated[dict[str, str], restart(
        "MODEL=DIR, the folder with a model's tokenizer.json; once for each model",
        "--tokenizer", metavar="MODEL=DIR")] = {}
    discover: Annotated[bool, restart("look for other models' tokenizers on this machine")] = True
    ask_replicas: Annotated[bool, restart("ask replicas for ids that cannot be made here")] = True
    ask_deadline_s: Annotated[SecondsAboveZero, restart(
        "time a replica has to answer with a prompt's ids")] = 2.0
    ask_limit_count: Annotated[Count, restart("most such questions a worker asks at once")] = 16
    fetch: Annotated[bool, restart("fetch missing tokenizers from the hub, at the start")] = True
    fetch_deadline_s: Annotated[Seconds, restart(
        "time a tokenizer has to be fetched; then the start goes on without")] = 60.0
    fast_engines: Annotated[bool, restart(
        "fastokens and minijinja, where a probe shows them equal to the usual engines")] = True
    cache_limit_bytes: Annotated[Bytes, restart(
        "memory of a worker, or tokenizer process, for what is known of prompts")] = 192 * MIB
    cache_entry_limit_bytes: Annotated[Bytes, restart(
        "most that is remembered of one prompt by one kind of cache")] = 8 * MIB
    threads: Annotated[int, Meta(ge=0, le=THREAD_LIMIT), restart(
        "tokenizer threads; 0: as many as CPUs it may use, 2 to 8")] = 0
    queue_limit_jobs: Annotated[Jobs, restart("most prompts waiting for a thread")] = 256
    queue_limit_bytes: Annotated[Bytes, restart(
        "most bytes of prompts in line for threads; half of it for each tenant")] = 64 * MIB
    queue_wait_limit_s: Annotated[Seconds, restart("longest expected wait for a thread")] = 1.0
    processes: Annotated[int, Meta(ge=0, le=WORKER_LIMIT), restart(
        "tokenizer processes for long prompts")] = 0
    process_limit_bytes: Annotated[Bytes, restart(
        "most bytes of prompts under way in each tokenizer process")] = 32 * MIB
    dispatch: Annotated[Literal["p2c", "round-robin"], restart("how one of them is chosen")] = "p2c"
    short_lane_s: Annotated[Seconds, restart(
        "prompts predicted to take less never wait behind longer ones")] = 0.001
    thread_hop_s: Annotated[Seconds, restart(
        "price of handing a prompt to a thread; shorter work runs on the loop")] = 0.0003
    stall_budget_s: Annotated[Seconds, restart("longest piece of tokenizing on the loop")] = 0.002
    fallback: Annotated[Literal["wait", "bail"], restart(
        "what happens to a prompt that no rung takes")] = "bail"
    context_check: Annotated[bool, restart("refuse prompts that no replica has room for")] = True
    needed_wait_s: Annotated[Seconds, restart(
        "longest wait of prompts that may be too long, where the ladder is full")] = 10.0
    forward_tokens: Annotated[Literal["off", "completions", "all"], restart(
        "which requests' ids go to replicas that have proven them")] = "all"
    as_text_ratio: Annotated[Ratio, restart(
        "share of these that go as text, at most one a second and replica, to be counted by it"
        )] = 0.01
    check_ratio: Annotated[float, Meta(ge=0, le=0.01), restart(
        "share of prompts whose ids are compared with the replicas', at most 1 %, and one a second "
        "and replica")] = 0.005


class Price(Section, frozen=True):
    """What a model's tokens cost, in one currency unit per million."""

    input_per_million: NotNegative = 0.0
    cached_input_per_million: Annotated[NotNegative, Meta(
        description="prompt tokens found cached")] = 0.0
    output_per_million: NotNegative = 0.0


class RoutingSettings(Section, frozen=True):
    """The policy, and what it knows of replicas."""

    policy: Annotated[str, live("how replicas are chosen", "--policy", metavar="NAME")] = "affinity"
    alpha: Annotated[Ratio, live(
        "what a queued token counts beside one's own while all replicas are busy")] = 0.1
    idle_alpha: Annotated[Ratio, live("the same while all are idle")] = 0.5
    sibling_alpha: Annotated[Ratio, live(
        "the same beside requests in flight that the same parent waits for")] = 1.0
    session_headers: Annotated[Words, live(
        "headers that name a session; the first one present counts")] = ("x-session-affinity",)
    parent_headers: Annotated[Words, live(
        "headers that name a request's parent; the first one present counts"
    )] = ("x-correlation-id",)
    head_limit_tokens: Annotated[Tokens, live(
        "what prefix-hash hashes where no common beginning is known")] = 2048
    load_factor: Annotated[float, Meta(ge=1), live(
        "most a hash may give a replica, in times its share of the requests")] = 1.25
    replica_limit_count: Annotated[Count, live("most requests in flight to a replica; 0: any")] = 0
    block_tokens: Annotated[Tokens, restart(
        "size of the blocks that prefixes are compared by; 0: the replicas'")] = 0
    cache_blocks: Annotated[Blocks, restart(
        "KV blocks of replicas that do not report them; 0: unknown")] = 0
    index_limit_blocks: Annotated[Blocks, restart("most blocks known of a replica")] = 1_000_000
    tenant_keep_s: Annotated[Seconds, live(
        "what a tenant used this lately stays known, up to its share; 0: no shares")] = 120.0
    refused_out_s: Annotated[Seconds, live(
        "a replica that refuses a connection is left out for this long, or until a probe")] = 2.0
    host_block_worth: Annotated[Ratio, live("worth of a block off the GPU, beside one on it")] = 0.9

    def conflicts(self) -> Iterator[str]:
        for name in ("idle_alpha", "sibling_alpha"):
            if getattr(self, name) < self.alpha:
                yield f"{name}: must be at least alpha, which is {self.alpha}"


class KvSource(Section, frozen=True):
    """Where one replica publishes its KV events (ZMQ)."""

    endpoint: Annotated[str, Meta(description="of rank 0; rank r is at the port plus r")]
    replay_endpoint: str = ""
    topic: str = ""
    data_parallel_ranks: Annotated[int, Meta(ge=1, le=RANK_LIMIT)] = 1
    bind: Annotated[bool, Meta(description="listen, because the replica connects")] = False


class KvEventSettings(Section, frozen=True):
    """KV events. A publisher that is silent is asked whether it published anything; after two late
    answers it counts as gone."""

    discover: Annotated[bool, restart("ask replicas where they publish KV events")] = True
    sources: Annotated[dict[str, KvSource], restart(
        "where replicas publish that do not say so, by the backend's URL, as JSON")] = {}
    check_interval_s: Annotated[IntervalSeconds, restart(
        "silence after which a publisher is asked")] = 5.0
    answer_deadline_s: Annotated[SecondsAboveZero, restart("time it has to answer")] = 2.0
    flush_interval_s: Annotated[Seconds, restart(
        "changes are collected for this long before workers are told")] = 0.01


class HealthSettings(Section, frozen=True):
    """When a replica that probes call up is left out for failing its requests, and how one that
    comes back gets its share."""

    failure_limit_count: Annotated[Count, live("failures in a row that leave a replica out")] = 5
    ejection_s: Annotated[Seconds, live("for this long, times the ejections in a row")] = 30.0
    ejection_limit_s: Annotated[Seconds, live("and at most for this long")] = 300.0
    ejection_limit_ratio: Annotated[Ratio, live(
        "most replicas left out, as a share of those with the model")] = 0.5
    slow_start_s: Annotated[Seconds, live(
        "a replica that comes back gets its share by degrees in this time; 0: at once")] = 10.0


class ControlSettings(Section, frozen=True):
    """Probes and scrapes of the replicas."""

    probe_interval_s: Annotated[IntervalSeconds, live("time between two probes of a replica")] = 1.0
    probe_deadline_s: Annotated[SecondsAboveZero, live(
        "time a replica has to answer a probe")] = 2.0
    fall_count: Annotated[Count, live("failed probes in a row after which a replica is down")] = 2
    rise_count: Annotated[Count, live("good probes in a row after which it is up")] = 1


class DiscoverySettings(Section, frozen=True):
    """Where replicas are found besides `backends`."""

    file: Annotated[File, live("YAML or JSON, a list of replicas, read when it changes")] = ""
    dns: Annotated[Words, live(
        "names whose addresses are replicas, http://NAME:PORT; without a port by SRV records")] = ()
    dns_interval_s: Annotated[SecondsAboveZero, live("time between two look-ups of a name")] = 5.0
    dns_deadline_s: Annotated[SecondsAboveZero, live("time a look-up may take")] = 5.0
    dns_absence_limit_count: Annotated[Count, live("answers in a row that may lack a replica")] = 2
    dns_servers: Annotated[Words, live("HOST or HOST:PORT of DNS servers; else the system's")] = ()
    kubernetes_service: Annotated[str, live("NAMESPACE/SERVICE whose endpoints are replicas")] = ""
    kubernetes_port: Annotated[str, live(
        "its port, by name or number; empty: the first", metavar="NAME|NUMBER")] = ""
    kubernetes_scheme: Annotated[Literal["http", "https"], live("scheme of their URLs")] = "http"
    kubernetes_url: Annotated[str, live("the API server")] = "https://kubernetes.default.svc"
    kubernetes_token_file: Annotated[File, live(
        "token shown to it, read again for each request")] = f"{_POD}/token"
    kubernetes_ca_file: Annotated[File, live("CAs of its certificate (PEM)")] = f"{_POD}/ca.crt"

    @property
    def on(self) -> bool:
        """Whether there is any source."""
        return bool(self.file or self.dns or self.kubernetes_service)


class FleetSettings(Section, frozen=True):
    """Other gateways in front of the same replicas, and the store through which they share what
    they have in flight (needs the extra `fleet`)."""

    store: Annotated[str, restart(
        "Valkey or Redis, redis://[USER@]HOST:PORT/DB, rediss:// with TLS; empty: none",
        metavar="URL")] = ""
    password_file: Annotated[File, restart(
        f"file with the store's password (or set {STORE_PASSWORD_VARIABLE})")] = ""
    tls_ca_file: Annotated[File, restart("CAs of its certificate, PEM; else the system's")] = ""
    tls_cert_file: Annotated[File, restart("certificate shown to it (PEM)")] = ""
    tls_key_file: Annotated[File, restart("its key (PEM), if not in the same file")] = ""
    name: Annotated[str, restart(
        "of this fleet; gateways of one name share, others may use the same store",
        metavar="NAME")] = "tokenlane"
    share_interval_s: Annotated[float, Meta(ge=0.01, le=0.05, extra={"unit": "seconds"}), restart(
        "time between two exchanges with the store")] = 0.05
    lease_s: Annotated[float, Meta(ge=0.6, le=1, extra={"unit": "seconds"}), restart(
        "what a gateway has in flight is forgotten when it is silent this long")] = 0.8
    prefix_limit_bytes_per_s: Annotated[BytesPerSecond, restart(
        "of routed prefixes told to the others, of replicas without KV events; 0: none")] = 65536
    peers: Annotated[Words, restart(
        "their admin ports, http://HOST:PORT: a gateway that starts asks them what caches hold"
    )] = ()

    def conflicts(self) -> Iterator[str]:
        if not (self.name.isascii() and self.name.replace("-", "").replace("_", "").isalnum()):
            yield "name: must be of letters, digits, dashes and underscores"


class LogSettings(Section, frozen=True):
    """The access log: a line for a request, written beside the loop."""

    access: Annotated[str, live(
        "where the lines go: stdout, stderr, off, or a file",
        metavar="stdout|stderr|off|FILE")] = "stdout"
    format: Annotated[Literal["auto", "json", "text"], live(
        "of the access log; auto: text on a terminal, else JSON")] = "auto"
    sample_ratio: Annotated[Ratio, live("share of unremarkable requests that get a line")] = 0.01
    slow_s: Annotated[Seconds, live("requests this slow to a first token always get a line")] = 10.0
    queue_limit_lines: Annotated[CountFromOne, live(
        "most lines waiting to be written; more are dropped and counted")] = 8192
    prefix_block_tokens: Annotated[Tokens, live(
        "lines hold a hash for every so many tokens of the prompt, for `replay`; 0: none")] = 0


class StallSettings(Section, frozen=True):
    """The stall monitor."""

    beat_s: Annotated[SecondsAboveZero, restart(
        "time between heartbeats of a working event loop")] = 0.005
    idle_beat_s: Annotated[Seconds, restart("the same of an idle one")] = 0.020
    threshold_s: Annotated[Seconds, restart("a heartbeat this late is a stall")] = 0.002


class TracingSettings(Section, frozen=True):
    """OpenTelemetry traces (needs the extra `otel`). What a client began is recorded as it says."""

    endpoint: Annotated[str, restart("OTLP collector, http://HOST:4318; empty: no traces")] = ""
    service_name: Annotated[str, restart("what traces call this gateway")] = "tokenlane"
    sample_ratio: Annotated[Ratio, restart("share of the traces that begin here")] = 1.0
    queue_limit_count: Annotated[CountFromOne, restart(
        "most traces waiting to be sent; more are dropped and counted")] = 4096


class Key(Section, frozen=True):
    """A client's key, known by its digest."""

    digest: Annotated[str, Meta(
        pattern="^[0-9a-f]{64}$", description="SHA-256 in hexadecimal",
        extra={"looks": "64 hexadecimal digits in lower case, the SHA-256 of a key"})]
    tenant: Annotated[str, Meta(
        pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        extra={"looks": "a name of at most 64 letters, digits, dots, dashes and underscores"})]
    expires: Annotated[datetime, Meta(
        tz=True, description="when it is refused, as 2027-01-31T00:00:00Z")] | None = None


class Tenant(Section, frozen=True):
    """What a tenant may have at once (0: any), and its class among those that wait."""

    concurrency_limit_count: Count = 0
    queued_limit_tokens: Annotated[Count, Meta(description="prompt tokens not computed yet")] = 0
    priority: Literal["interactive", "standard", "batch"] = "standard"


class AuthSettings(Section, frozen=True):
    """Keys of clients. Without any, all may come in."""

    keys: Annotated[tuple[Key, ...], live(
        "clients' keys as digests, as JSON; without any, all may come in")] = ()
    keys_file: Annotated[File, live("YAML file with a list of more of them")] = ""
    tenants: Annotated[dict[str, Tenant], live("what each tenant may have, as JSON")] = {}


class AdmissionSettings(Section, frozen=True):
    """What the gateway takes on at once; workers share it evenly. Tenants have limits of their own
    (`auth.tenants`)."""

    concurrency_limit_count: Annotated[Count, live("most requests in hand at once; 0: any")] = 0
    queued_limit_tokens: Annotated[Tokens, live(
        "most prompt tokens not yet computed, guessed by the size of bodies; 0: any")] = 0
    queue_limit_count: Annotated[CountFromOne, live("most requests that wait for a place")] = 1000
    queue_deadline_s: Annotated[Seconds, live("longest wait for a place")] = 5.0
    long_prompt_tokens: Annotated[Tokens, live(
        "prompts guessed longer than this wait in class batch; 0: none")] = 0
    sibling_lead_s: Annotated[Seconds, live(
        "a request counts as old as its parent's first, by this much at most; 0: as it is")] = 5.0


class RequestSettings(Section, frozen=True):
    """What bodies may not ask of replicas."""

    stripped_fields: Annotated[Words, live("fields dropped from bodies")] = ()
    refused_fields: Annotated[Words, live("fields that make a request a 400")] = ()
    output_limit_tokens: Annotated[Tokens, live("most tokens a request gets; 0: any")] = 0
    choice_limit_count: Annotated[Count, live("most choices of a request (n, best_of); 0: any")] = 0


class Shadow(Section, frozen=True):
    """A copy of some requests for another model."""

    to: str
    ratio: Annotated[float, Meta(gt=0, le=1, description="of the conversations")]


class ModelSettings(Section, frozen=True):
    """Models under other names."""

    aliases: Annotated[dict[str, str], live(
        "NAME=MODEL, another name for a model; once for each", metavar="NAME=MODEL")] = {}
    splits: Annotated[dict[str, dict[str, Annotated[float, Meta(ge=0)]]], live(
        "names that several models share, by weight, as JSON")] = {}
    shadows: Annotated[dict[str, Shadow], live("models whose requests are copied, as JSON")] = {}
    shadow_limit_count: Annotated[Count, live("most copies under way in a worker")] = 32
    shadow_limit_bytes: Annotated[Bytes, live("most bytes of their bodies")] = 64 * MIB

    def conflicts(self) -> Iterator[str]:
        for name, weights in self.splits.items():
            if name in self.aliases:
                yield f"splits.{name}: cannot be an alias and a split"
            if not any(weights.values()):
                yield f"splits.{name}: needs a model with a weight above 0"
            for model in weights:
                if model in self.aliases or (model in self.splits and model != name):
                    yield f"splits.{name}: must be of models, and {model} is a name"
        for name, model in self.aliases.items():
            if model in self.aliases:
                yield f"aliases.{name}: must name a model or a split, not an alias"
        for model, shadow in self.shadows.items():
            if shadow.to == model:
                yield f"shadows.{model}: cannot be its own shadow"
            if shadow.to in self.aliases or shadow.to in self.splits:
                yield f"shadows.{model}: must go to a model, not to another name"


class Settings(Section, frozen=True):
    """Everything."""

    backends: Annotated[Words, live(
        "a replica, http://HOST:PORT; once for each, or several with commas",
        # The latter two are other routers' words.
        "--backend", "--worker-urls", "--static-backends", metavar="URL")] = ()
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
    fleet: FleetSettings = FleetSettings()
    log: LogSettings = LogSettings()
    health: HealthSettings = HealthSettings()
    stalls: StallSettings = StallSettings()
    tracing: TracingSettings = TracingSettings()
    prices: Annotated[dict[str, Price], live("what tokens cost, by model, as JSON")] = {}

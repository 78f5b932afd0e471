"""Every setting as an option: its path in the file, its flag, its variable, its default, its unit.

Invariants:
- The table is read off the settings' own types, so no setting can be forgotten here; only the
  words of the help are written by hand.
- A flag, a variable and a line of the file mean the same and are checked by the same rule.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from proxy.errors import ConfigError
from proxy.keyring import ADMIN_TOKEN_VARIABLE, REPLICA_KEY_VARIABLE
from proxy.settings import Settings

PREFIX = "TOKENLANE_"
# Read elsewhere: by the command line, and when the package is built.
_OTHER_VARIABLES = frozenset(
    {PREFIX + "CONFIG", PREFIX + "COMPILE", REPLICA_KEY_VARIABLE, ADMIN_TOKEN_VARIABLE}
)
# Flags that people type; all others are named after the setting's path.
_FLAGS = {
    "backends": "--backend",
    "server.host": "--host",
    "server.port": "--port",
    "server.workers": "--workers",
    "routing.policy": "--policy",
    "tokens.folders": "--tokenizer",
}
# Settings, or sections of them, that a reload puts in force; all others need a restart.
_LIVE = (
    "backends", "admin.token_file", "upstream", "auth", "admission", "requests", "models",
    "control", "discovery", "log", "health", "prices",
    *(
        f"server.{name}"
        for name in (
            "head_limit_bytes", "header_limit_count", "target_limit_bytes", "body_limit_bytes",
            "pipelined_limit_bytes", "write_high_water_bytes", "idle_deadline_s",
            "head_deadline_s", "body_deadline_s", "write_stall_deadline_s", "drain_deadline_s",
            "drain_linger_s", "trusted_peers",
        )
    ),
    *(
        f"routing.{name}"
        for name in (
            "policy", "alpha", "idle_alpha", "sibling_alpha", "session_headers", "parent_headers",
            "head_limit_tokens", "load_factor", "replica_limit_count", "refused_out_s",
            "host_block_worth",
        )
    ),
)  # fmt: skip
# Other routers' words for the same.
ALIASES = {"backends": ("--worker-urls", "--static-backends")}
# What a mapping of texts looks like where it is typed.
FORMS = {"tokens.folders": "MODEL=DIR", "models.aliases": "NAME=MODEL"}
_UNITS = {
    "_s": "seconds", "_bytes": "bytes", "_tokens": "tokens", "_blocks": "blocks",
    "_entries": "entries", "_jobs": "jobs", "_per_million": "per million tokens",
}  # fmt: skip
HELP = {
    "backends": "a replica, http://HOST:PORT; once for each, or several with commas",
    "server.host": "address of the data port",
    "server.port": "data port; 0 picks one",
    "server.share_port": "another gateway may serve on the data port too, and take over",
    "server.workers": "data plane processes",
    "server.head_limit_bytes": "largest head of a request",
    "server.header_limit_count": "most header fields of a request",
    "server.target_limit_bytes": "longest path with its query",
    "server.body_limit_bytes": "largest body of a request",
    "server.bodies_limit_bytes": "most bytes of bodies held at once; more gets 503; 0 for any",
    "server.memory_limit_ratio": "share of the cgroup's memory above which bodies get 503; 0: any",
    "server.pipelined_limit_bytes": "most bytes held of requests behind the one being served",
    "server.write_high_water_bytes": "unsent bytes of an answer above which its replica waits",
    "server.idle_deadline_s": "idle client connections are closed after this",
    "server.head_deadline_s": "time for a request's head to come whole",
    "server.body_deadline_s": "time for a request's body to come whole",
    "server.write_stall_deadline_s": "a client that reads nothing for so long is cut off",
    "server.drain_deadline_s": "time that running requests have when the gateway stops",
    "server.drain_linger_s": "when it stops, idle connections may be used once more for so long",
    "admin.host": "address of the admin port",
    "admin.port": "admin port; 0 picks one",
    "admin.token_file": f"file with the token for changes (or set {ADMIN_TOKEN_VARIABLE})",
    "upstream.connect_deadline_s": "time to connect to a replica",
    "upstream.first_byte_deadline_s": "time until a replica begins to answer",
    "upstream.between_chunks_deadline_s": "longest pause inside an answer",
    "upstream.idle_deadline_s": (
        "idle connections to replicas are closed after this; below the replica's keep-alive (5 s)"
    ),
    "upstream.idle_limit_count": "most idle connections kept to each replica",
    "upstream.head_limit_bytes": "largest head of an answer",
    "upstream.retry_limit_count": "most further replicas tried for a request",
    "upstream.retry_budget_ratio": "retries allowed, as a share of the requests",
    "upstream.retry_budget_burst_count": "retries allowed beside that share",
    "upstream.api_key_file": f"file with the key for replicas (or set {REPLICA_KEY_VARIABLE})",
    "auth.keys": "clients' keys as digests, as JSON; without any, all may come in",
    "auth.keys_file": "YAML file with more of them",
    "auth.tenants": "what each tenant may have, as JSON",
    "admission.concurrency_limit_count": "most requests in hand at once; 0: any",
    "admission.queued_limit_tokens": "most prompt tokens waiting at replicas; 0: any",
    "admission.queue_limit_count": "most requests that wait for a place",
    "admission.queue_deadline_s": "longest wait for a place",
    "admission.long_prompt_tokens": "prompts guessed longer than this wait in class batch; 0: none",
    "admission.sibling_lead_s": (
        "what a parent waits for counts as so much older at most; 0: no order but that of arrival"
    ),
    "routing.replica_limit_count": "most requests in flight to a replica; 0: any",
    "server.tls_cert_file": "certificate chain of the data port (PEM); it then speaks TLS",
    "server.tls_key_file": "its key (PEM), if it is in a file of its own",
    "server.cors_origins": "pages of these origins may ask, as https://app.example; * for all",
    "server.trusted_peers": "networks whose forwarded headers pass, as 10.0.0.0/8",
    "upstream.tls_ca_file": "CAs that sign replicas' certificates (PEM); else the system's",
    "upstream.tls_cert_file": "certificate shown to replicas (PEM)",
    "upstream.tls_key_file": "its key (PEM), if it is in a file of its own",
    "requests.stripped_fields": "fields dropped from bodies",
    "requests.refused_fields": "fields that make a request a 400",
    "requests.output_limit_tokens": "most tokens a request may ask for; 0: any",
    "requests.choice_limit_count": "most choices a request may ask for (n, best_of); 0: any",
    "models.aliases": "NAME=MODEL, another name for a model; once for each",
    "models.splits": "names that several models share, by weight, as JSON",
    "models.shadows": "models whose requests are copied to another one, as JSON",
    "models.shadow_limit_count": "most copies under way in a worker; further ones are not made",
    "models.shadow_limit_bytes": "most bytes of their bodies",
    "upstream.retry_unanswered": "try again what a replica may have begun to compute",
    "tokens.folders": "MODEL=DIR, the folder with a model's tokenizer.json; once for each model",
    "tokens.discover": "look for other models' tokenizers on this machine",
    "tokens.ask_replicas": "ask replicas (/tokenize) for ids that cannot be made here",
    "tokens.ask_deadline_s": "time a replica has to answer with a prompt's ids",
    "tokens.ask_limit_count": "most such questions under way in a worker; further prompts bail",
    "tokens.fetch": "fetch tokenizers that are not on this machine from the hub, at the start",
    "tokens.fetch_deadline_s": "time a tokenizer has to be fetched; then the start goes on without",
    "tokens.fast_engines": "fastokens and minijinja where a probe shows them equal",
    "tokens.cache_limit_entries": "most whole requests remembered",
    "tokens.cache_limit_bytes": "memory for whole requests",
    "tokens.cache_entry_limit_bytes": "largest request remembered whole",
    "tokens.opening_limit_entries": "most beginnings of short prompts remembered",
    "tokens.opening_limit_bytes": "memory for beginnings of short prompts",
    "tokens.opening_entry_limit_bytes": "longest beginning of a short prompt remembered",
    "tokens.segment_limit_entries": "most stretches of text remembered",
    "tokens.segment_limit_bytes": "memory for stretches of text",
    "tokens.segment_entry_limit_bytes": "longest stretch of text remembered",
    "tokens.prefix_limit_entries": "most beginnings of prompts remembered",
    "tokens.prefix_limit_bytes": "memory for beginnings of prompts",
    "tokens.prefix_entry_limit_bytes": "longest beginning of a prompt remembered",
    "tokens.threads": "tokenizer threads; 0: as many as cores, at least 2, at most 8",
    "tokens.queue_limit_jobs": "most prompts waiting for a thread",
    "tokens.queue_limit_bytes": "most bytes of prompts waiting for a thread",
    "tokens.queue_wait_limit_s": "prompts that would wait longer go on to the next rung",
    "tokens.processes": "tokenizer processes for long prompts",
    "tokens.process_limit_bytes": "prompts under way in each tokenizer process",
    "tokens.dispatch": "how a tokenizer process is chosen",
    "tokens.short_lane_s": "prompts predicted to take less never wait behind longer ones",
    "tokens.thread_hop_s": "price of handing a prompt to a thread",
    "tokens.stall_budget_s": "longest piece of tokenizing on the event loop",
    "tokens.fallback": "what happens to a prompt that no rung takes",
    "tokens.needed_wait_s": "longest wait of what may be too long, where the ladder is full",
    "tokens.context_check": "refuse prompts that no replica has room for",
    "tokens.forward_tokens": "whose ids go to the replica in the place of text",
    "routing.policy": "how replicas are chosen",
    "routing.alpha": "what a queued token counts beside an own one while all replicas are busy",
    "routing.idle_alpha": "the same while all are idle",
    "routing.sibling_alpha": ("the same beside requests in flight that the same parent waits for"),
    "routing.parent_headers": (
        "headers that name the parent that waits for a request; the first that is there counts"
    ),
    "routing.session_headers": "headers that name a session; the first that is there counts",
    "routing.head_limit_tokens": "what prefix-hash hashes where no common beginning is known",
    "routing.load_factor": "most a hash may give a replica, in times its share of the requests",
    "routing.cache_blocks": "KV blocks of replicas that do not report them; 0: unknown",
    "routing.host_block_worth": "worth of a block in CPU memory beside one on the GPU, 0 to 1",
    "routing.block_tokens": "size of the blocks that prefixes are compared by; 0: the replicas'",
    "routing.index_limit_blocks": "most blocks remembered of all replicas",
    "routing.refused_out_s": "a replica that refuses a connection is left out for so long",
    "discovery.file": "YAML or JSON file with a list of replicas, read when it changes",
    "discovery.dns": "names whose addresses are replicas, http://NAME:PORT (SRV: no port)",
    "discovery.dns_interval_s": "time between two look-ups of a name",
    "discovery.dns_deadline_s": "time a look-up may take",
    "discovery.dns_absence_limit_count": "answers in a row that may lack a replica's address",
    "discovery.dns_servers": "HOST or HOST:PORT of DNS servers; else the system's",
    "discovery.kubernetes_service": "NAMESPACE/SERVICE whose endpoints are replicas",
    "discovery.kubernetes_port": "name or number of the service's port; empty: the first",
    "discovery.kubernetes_scheme": "how these replicas are spoken to",
    "discovery.kubernetes_url": "the Kubernetes API server",
    "discovery.kubernetes_token_file": "token shown to it, read anew for each request",
    "discovery.kubernetes_ca_file": "CAs that sign its certificate (PEM)",
    "control.probe_interval_s": "time between two probes of a replica",
    "control.probe_deadline_s": "time a replica has to answer a probe",
    "control.fall_count": "failed probes in a row after which a replica is down",
    "control.rise_count": "good probes in a row after which it is up",
    "kv_events.discover": "ask replicas where they publish KV events",
    "kv_events.sources": "where replicas publish KV events that do not say so, as JSON",
    "kv_events.check_interval_s": "a publisher silent for so long is asked whether it was",
    "kv_events.answer_deadline_s": "time it has to answer",
    "kv_events.flush_interval_s": "changes are collected for so long before workers are told",
    "log.access": "where a line for each request goes: stdout, stderr, off, or a file",
    "log.format": "of the access log; auto: text on a terminal, else JSON",
    "log.sample_ratio": "share of the unremarkable requests that get a line",
    "log.slow_s": "requests this slow to their first token always get a line",
    "log.queue_limit_lines": "most lines waiting to be written; more are dropped and counted",
    "log.prefix_block_tokens": (
        "lines name their prompt by a hash for each so many tokens, for `replay`; 0: they do not"
    ),
    "health.failure_limit_count": "failed requests in a row after which a replica is left out",
    "health.ejection_s": "for so long, the first time",
    "health.ejection_limit_s": "and at most for so long",
    "health.ejection_limit_ratio": "most replicas left out at a time, as a share of all",
    "health.slow_start_s": "a replica that comes back gets its share by degrees; 0: at once",
    "stalls.beat_s": "time between heartbeats of a working event loop",
    "stalls.idle_beat_s": "the same of an idle one",
    "stalls.threshold_s": "a heartbeat this late is a stall, and charged to a cause",
    "tracing.endpoint": "OTLP collector, http://HOST:4318; empty: no traces",
    "tracing.service_name": "what traces call this gateway",
    "tracing.sample_ratio": "share of the traces that begin here",
    "tracing.queue_limit_count": "most traces waiting to be sent; more are dropped and counted",
    "prices": "what tokens cost, by model, as JSON",
}


class Option(msgspec.Struct, frozen=True):
    """A setting. type: of its value. default: msgspec.NODEFAULT never occurs."""

    path: str
    type: Any
    default: Any

    @property
    def section(self) -> str:
        """The part of the file it is in; empty for those at the top."""
        return self.path.rpartition(".")[0]

    @property
    def flag(self) -> str:
        """On the command line."""
        named = "--" + self.path.replace(".", "-").replace("_", "-")
        return _FLAGS.get(self.path, named)

    @property
    def variable(self) -> str:
        """In the environment."""
        return PREFIX + self.flag.removeprefix("--").replace("-", "_").upper()

    @property
    def unit(self) -> str | None:
        """What its number is in."""
        return next((unit for end, unit in _UNITS.items() if self.path.endswith(end)), None)

    @property
    def live(self) -> bool:
        """A reload puts it in force; else a restart is needed."""
        return any(self.path == one or self.path.startswith(one + ".") for one in _LIVE)

    @property
    def many(self) -> bool:
        """May be given more than once: a list, or a mapping of texts."""
        return self.words or bool(self.type == dict[str, str])

    @property
    def words(self) -> bool:
        """Is a list of texts."""
        return bool(self.type == tuple[str, ...])

    @property
    def help(self) -> str:
        """One line, without default and unit."""
        return HELP[self.path]

    @property
    def default_text(self) -> str | None:
        """The default as it would be typed; None for none."""
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default)) or None
        return None if isinstance(self.default, dict) else _typed(self.default)


def _typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def leaves(settings: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every setting, in the order of the file."""
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, msgspec.Struct):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _types(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, kind in get_type_hints(struct).items():
        if name not in struct.__struct_fields__:
            continue
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from _types(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


_DEFAULTS = dict(leaves(Settings()))
OPTIONS: dict[str, Option] = {
    path: Option(path, kind, _DEFAULTS[path]) for path, kind in _types(Settings)
}


def shown(settings: Settings) -> Iterator[tuple[str, str, bool]]:
    """(dotted path, value as JSON text, whether it is the default) of every setting."""
    for path, value in leaves(settings):
        # Digests are no secrets, and nobody's business either.
        shown_value = f"{len(value)} keys" if path == "auth.keys" else value
        yield path, msgspec.json.encode(shown_value).decode(), value == _DEFAULTS[path]


def wanted(kind: Any) -> str:
    """A type in words: what a value must be."""
    if get_origin(kind) is Literal:
        return "one of: " + ", ".join(_typed(choice) for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return "a list"
    if get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return "a mapping"
    if datetime in get_args(kind):
        return "a time with its zone, as 2027-01-31T00:00:00Z"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")


def _pairs(words: list[str], source: str, form: str) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, _, value = word.partition("=")
        if not (name and value):
            raise ConfigError(f"{source}: {word!r} must look like {form}")
        pairs[name] = value
    return pairs


def read(option: Option, texts: list[str], source: str) -> Any:
    """A value as typed. source: the flag or variable, for the ConfigError if it is none."""
    if option.many:
        words = [word for text in texts for word in text.replace(",", " ").split()]
        return words if option.words else _pairs(words, source, FORMS[option.path])
    text = texts[-1]
    value: Any = text
    if get_origin(option.type) in (dict, tuple):
        try:
            value = json.loads(text)
        except ValueError:
            raise ConfigError(f"{source}: is not JSON; it must be {wanted(option.type)}") from None
    try:
        made = msgspec.convert(value, option.type, strict=False)
    except msgspec.ValidationError:
        raise ConfigError(f"{source}: {text!r} must be {wanted(option.type)}") from None
    return msgspec.to_builtins(made)


def from_environment(environ: Mapping[str, str]) -> Iterator[tuple[Option, Any]]:
    """Settings given as variables. Empty ones count as not given. ConfigError names a wrong one."""
    for option in OPTIONS.values():
        text = environ.get(option.variable, "")
        # Kubernetes puts TOKENLANE_PORT=tcp://… there for a Service of that name.
        if text and not (option.type is int and text.startswith("tcp://")):
            yield option, read(option, [text], option.variable)


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that look like ours and mean nothing, each with what was probably meant, or an
    empty text."""
    known = {option.variable for option in OPTIONS.values()} | _OTHER_VARIABLES
    services = ("_SERVICE_HOST", "_SERVICE_PORT")
    unknown = sorted(
        name
        for name, value in environ.items()
        if name.startswith(PREFIX)
        and name not in known
        and not value.startswith("tcp://")
        and not any(part in name for part in (*services, "_TCP"))
    )
    bare = [name.removeprefix(PREFIX) for name in known]
    near = {name: get_close_matches(name.removeprefix(PREFIX), bare, 1) for name in unknown}
    return {name: PREFIX + meant[0] if meant else "" for name, meant in near.items()}

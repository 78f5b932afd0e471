"""The table of all metric families. Everything exported is declared here, nothing else is.

Invariants:
- Names carry base units (seconds, bytes, tokens); counters end in `_total`.
- Label sets are closed: a value the code did not foresee becomes `other`.
- docs/metrics.md is made of this table (scripts/families.py); a test compares them.
"""

from tokenlane.telemetry.metrics import departures
from tokenlane.telemetry.metrics.family import (
    DURATION_BUCKETS_S,
    STAGE_BUCKETS_S,
    STALL_BUCKETS_S,
    TOKEN_BUCKETS,
    TOKENIZE_BUCKETS_S,
    TPOT_BUCKETS_S,
    TTFT_BUCKETS_S,
    Family,
)

OTHER = departures.OTHER
AT_REPLICA = ("model", "replica")
STAGES = ("read", "inspect", "tokens", "route", "attempt", "first_byte", "relay")

# fmt: off
REQUESTS = Family("counter", "tokenlane_requests_total",
    "Requests answered on the data port. client_error: 4xx, for what the client sent, from here or "
    "from the replica, which may say so within a stream.",
    ("route", "status", "outcome", "model"), child_limit=2048)
REPLICA_REQUESTS = Family("counter", "tokenlane_replica_requests_total",
    "Requests that a replica was chosen for; one that went on to another counts at both. How many "
    "failed there: tokenlane_upstream_failures_total.", AT_REPLICA, child_limit=1024)
REPLICA_ANSWERS = Family("counter", "tokenlane_replica_answers_total",
    "Requests that a replica answered whole. One that goes on with that stays up, though its "
    "health probes run out of time.", AT_REPLICA, child_limit=1024)
NAMED = Family("counter", "tokenlane_named_requests_total",
    "Requests for a name of the settings (alias or split), by the model it stood for.",
    ("name", "model"), child_limit=512)
SHADOWS = Family("counter", "tokenlane_shadow_requests_total",
    "Copies of requests made for a model, by what became of them: ok, refused (an answer of 400 or "
    "more), failed (none, or half of one), nobody (no replica was up), full (too many at once), "
    "stopped (the gateway was).", ("model", "outcome"))
SHADOW_DURATION = Family("histogram", "tokenlane_shadow_duration_seconds",
    "Time from the making of a copy to the end of its answer, of those that ended ok.",
    ("model",), DURATION_BUCKETS_S)
UNAUTHORIZED = Family("counter", "tokenlane_unauthorized_total",
    "Requests refused for their key: missing, malformed, unknown, expired.", ("reason",))
TENANT_REQUESTS = Family("counter", "tokenlane_tenant_requests_total",
    "Requests by tenant, where clients have keys; `other` had no good one.",
    ("tenant", "outcome"), child_limit=1024)
SHED = Family("counter", "tokenlane_shed_requests_total",
    "Requests turned away for overload, by tenant and why: queue-full, deadline (waited too long), "
    "displaced (by one of a tenant with less waiting, or of a better class), memory, accept-queue "
    "(waited too long to be accepted, while more clients came than could be served).",
    ("tenant", "reason"), child_limit=512)
ADMISSION_WAIT = Family("histogram", "tokenlane_admission_wait_seconds",
    "Time admitted requests waited for a place, where places are limited, by priority class.",
    ("priority",), STAGE_BUCKETS_S)
ADMITTED = Family("gauge", "tokenlane_admitted_requests",
    "Requests that have a place, of all workers.")
WAITING = Family("gauge", "tokenlane_waiting_requests",
    "Requests that wait for a place, of all workers.")
TENANT_TOKENS = Family("counter", "tokenlane_tenant_tokens_total",
    "Tokens by tenant and kind: prompt (as counted by the gateway), output.",
    ("tenant", "kind"), child_limit=1024)
DURATION = Family("histogram", "tokenlane_request_duration_seconds",
    "Time from the end of the request's head to the end of its answer "
    "(OpenTelemetry: gen_ai.server.request.duration).", ("route",), DURATION_BUCKETS_S)
TTFT = Family("histogram", "tokenlane_time_to_first_token_seconds",
    "Time from the end of the request's head to the first generated token of a streamed answer "
    "(OpenTelemetry: gen_ai.server.time_to_first_token).", AT_REPLICA, TTFT_BUCKETS_S,
    child_limit=1024)
TPOT = Family("histogram", "tokenlane_time_per_output_token_seconds",
    "Mean time between the tokens of a streamed answer after its first, counted by its usage, or "
    "by its events where it has none (OpenTelemetry: gen_ai.server.time_per_output_token).",
    AT_REPLICA, TPOT_BUCKETS_S, child_limit=1024)
STAGE = Family("histogram", "tokenlane_stage_seconds",
    f"Time a request spent in each stage of its life: {', '.join(STAGES)}.",
    ("stage",), STAGE_BUCKETS_S)
TOKENIZE = Family("histogram", "tokenlane_tokenize_seconds",
    "Time to get a prompt's token ids (render, encode, hash), without waiting, by rung.",
    ("rung", "model"), TOKENIZE_BUCKETS_S)
TOKENIZE_QUEUE = Family("histogram", "tokenlane_tokenize_queue_seconds",
    "Time a tokenization job waited before it began, by rung.", ("rung",), TOKENIZE_BUCKETS_S)
BAILS = Family("counter", "tokenlane_tokenize_bails_total",
    "Requests routed without token ids, by reason.", ("reason",))
CACHE_HITS = Family("counter", "tokenlane_token_cache_hits_total",
    "Lookups that found their ids.", ("cache",))
CACHE_MISSES = Family("counter", "tokenlane_token_cache_misses_total",
    "Lookups that found nothing.", ("cache",))
CACHE_EVICTIONS = Family("counter", "tokenlane_token_cache_evictions_total",
    "Entries dropped to make room.", ("cache",))
CACHE_ENTRIES = Family("gauge", "tokenlane_token_cache_entries",
    "Entries held, summed over the workers.", ("cache",))
TOKENIZER_PATH = Family("gauge", "tokenlane_tokenizer_fast_path_info",
    "Workers that do this part of a model's tokenizing (encoder, template) by this engine.",
    ("model", "part", "path"))
TOKENIZER_DOUBTS = Family("gauge", "tokenlane_tokenizer_doubts",
    "Reasons why a model's ids, where they are made here, may differ from vLLM's; the log, doctor "
    "and /status.json name them.", ("model",), where="control")
LOOP_STALL = Family("histogram", "tokenlane_loop_stall_seconds",
    "How late the heartbeat of a worker's event loop was (one observation every 5 ms while the "
    "loop works, 15 ms while it waits, 20 ms while it is idle).", ("worker",), STALL_BUCKETS_S)
LOOP_STALLS = Family("counter", "tokenlane_loop_stalls_total",
    "Heartbeats of a worker's event loop that were later than the threshold (2 ms), by cause.",
    ("cause",))
LOOP_STALL_CAUSES = Family("counter", "tokenlane_loop_stall_cause_seconds_total",
    "How late these heartbeats were, summed by cause.", ("cause",))
STALL_MONITOR_CPU = Family("counter", "tokenlane_stall_monitor_cpu_seconds_total",
    "CPU time of the stall monitor: its thread and the heartbeats, summed over the workers.")
ROUTED = Family("counter", "tokenlane_routing_decisions_total",
    "Routing decisions by policy and reason.", ("policy", "reason"))
PROMPT_TOKENS = Family("counter", "tokenlane_prompt_tokens_total",
    "Prompt tokens of routed requests, as counted by the gateway, or by the replica where the "
    "gateway could not.", AT_REPLICA, child_limit=1024)
OUTPUT_TOKENS = Family("counter", "tokenlane_output_tokens_total",
    "Generated tokens, as the replicas report them (for streams without usage: their events).",
    AT_REPLICA, child_limit=1024)
COST = Family("counter", "tokenlane_estimated_cost_total",
    "Estimated cost of the answers (status below 400) by the prices of the settings, in their "
    "currency.", ("model",))
PROMPT_SIZE = Family("histogram", "tokenlane_prompt_size_tokens",
    "Prompt tokens per request, as counted by the gateway.", (), TOKEN_BUCKETS)
PREDICTED_CACHED = Family("counter", "tokenlane_predicted_cached_tokens_total",
    "Prompt tokens the chosen replica was predicted to hold in its cache "
    "(requests whose answer reported a number).", AT_REPLICA, child_limit=1024)
ACTUAL_CACHED = Family("counter", "tokenlane_actual_cached_tokens_total",
    "Prompt tokens the replicas reported as cached.", AT_REPLICA, child_limit=1024)
MISMATCHES = Family("counter", "tokenlane_prompt_token_mismatches_total",
    "Times a replica was found to make other prompt tokens than the gateway: by an answer's usage, "
    "or because it was asked. Each ends the use of the gateway's ids for that replica until it has "
    "proven them.", ("model", "replica"), child_limit=1024)
FORWARDED = Family("counter", "tokenlane_forwarded_requests_total",
    "Requests that a replica got, of those whose prompt was read, by what it got and why. As ids: "
    "proven, client (that sent ids). As text: off (the setting), no-ids (none were made), unproven "
    "(by the replica), dialect (of another API), fields (that read the prompt's text, or cut it), "
    "date (the template prints it), asked (a replica made the ids), long (over the replica's "
    "context), sample (of the replica's own counts).", ("as", "reason"))
ID_CHECKS = Family("counter", "tokenlane_id_checks_total",
    "Times a replica was asked for ids again, of a sample of its requests, now and then, and of "
    "what refuted it: same, other, or unknown (it did not say).",
    ("model", "replica", "result"), child_limit=1024)
UPSTREAM_FAILURES = Family("counter", "tokenlane_upstream_failures_total",
    "Attempts that failed at a replica, by reason.", (*AT_REPLICA, "reason"), child_limit=2048)
RETRIES = Family("counter", "tokenlane_retries_total",
    "Requests sent on to another replica, by reason.", ("reason",))
RETRIES_DENIED = Family("counter", "tokenlane_retries_denied_total",
    "Requests that were not sent on to another replica because the retry budget was used up.")
EJECTIONS = Family("counter", "tokenlane_replica_ejections_total",
    "Times a replica was left out for failing its requests, summed over the workers.",
    ("replica",), child_limit=1024)
LEFT_OUT = Family("gauge", "tokenlane_replica_left_out",
    "Workers that leave the replica out of requests now: refused (a connection), ejected (for its "
    "failures), starting (it gets a part) or full.",
    ("replica", "reason"), child_limit=4096)
CONNECTIONS = Family("gauge", "tokenlane_connections",
    "Open client connections, summed over the workers.")
ACCEPT_QUEUE = Family("gauge", "tokenlane_accept_queue_connections",
    "Connections that the kernel has made and a worker has not accepted yet, summed over the "
    "workers. Each worker's queue has room for 4096 (net.core.somaxconn, if that is less).")
ACCEPT_DROPS = Family("counter", "tokenlane_accept_queue_drops_total",
    "Times the kernel dropped what a new client sent because a worker's queue of connections was "
    "full. Clients try again after a second or more, or give up.")
MEMORY_BYTES = Family("gauge", "tokenlane_memory_bytes",
    "Memory of what is kept for requests, texts, names and peers, summed over the workers: what is "
    "known of prompts by kind (request-cache, body-cache, shape-cache, opening-cache, "
    "segment-cache, prefix-cache, listed-cache), prompts that wait for a thread (tokenizing; "
    "their bytes are in bodies), bodies in hand (bodies), copies of them (shadows), heads, the "
    "prefix index by what was routed (index-own), what replicas hold by their events "
    "(index-events), what is on its way to them (index-pending), kept responses (responses), "
    "parents, lines and spans to be written (access-log, traces). Indexes, parents, lines and "
    "spans are estimated.", ("part",))
MEMORY_LIMIT = Family("gauge", "tokenlane_memory_limit_bytes",
    "The most that a part may be, summed over the workers; parts with a limit in bytes.",
    ("part",))
UPSTREAM_CONNECTIONS = Family("gauge", "tokenlane_upstream_connections",
    "Connections to replicas, summed over the workers.", ("state",))

IN_FLIGHT = Family("gauge", "tokenlane_replica_in_flight_requests",
    "Requests this gateway has in flight at a replica.", ("replica",), where="control")
QUEUED_TOKENS = Family("gauge", "tokenlane_replica_queued_tokens",
    "Uncached prompt tokens of requests without a first byte yet.", ("replica",), where="control")
REPLICA_UP = Family("gauge", "tokenlane_replica_up",
    "1 if the replica is up, by its health probes and its answers, else 0.",
    ("replica",), where="control")
REPLICA_RUNNING = Family("gauge", "tokenlane_replica_running_requests",
    "vllm:num_requests_running as last scraped.", ("replica",), where="control")
REPLICA_WAITING = Family("gauge", "tokenlane_replica_waiting_requests",
    "vllm:num_requests_waiting as last scraped.", ("replica",), where="control")
REPLICA_KV_USAGE = Family("gauge", "tokenlane_replica_kv_usage_ratio",
    "vllm:kv_cache_usage_perc as last scraped, 0 to 1.", ("replica",), where="control")
FRONT_END_STARVED = Family("gauge", "tokenlane_replica_front_end_starved",
    "1 while a replica's requests wait for its front end (tokenizing, handing on) and not for its "
    "engine, else 0; /status.json has the numbers.", ("replica",), where="control")
ID_PROOFS = Family("gauge", "tokenlane_id_proof",
    "Whether a replica has proven that it makes the gateway's ids, by kind of request: 1 proven, "
    "0 unproven, -1 refuted.", ("model", "replica", "kind"), child_limit=1024, where="control")
PROBE_FAILURES = Family("counter", "tokenlane_probe_failures_total",
    "Health probes that failed, by reason.", ("replica", "reason"), where="control")
KV_EVENTS = Family("counter", "tokenlane_kv_events_total",
    "KV events of a replica by type; `unread`: those that could not be read.",
    ("replica", "rank", "type"), where="control")
KV_GAPS = Family("counter", "tokenlane_kv_event_gaps_total",
    "Gaps in a replica's KV events, those closed by a replay included.",
    ("replica", "rank"), where="control")
KV_LOST = Family("counter", "tokenlane_kv_event_messages_lost_total",
    "KV event messages that no replay had; what was known of the cache is then forgotten.",
    ("replica", "rank"), where="control")
KV_LAG = Family("gauge", "tokenlane_kv_event_lag_seconds",
    "From a KV event message's making to its use, of the last one, by both machines' clocks.",
    ("replica", "rank"), where="control")
KV_STANDING = Family("gauge", "tokenlane_kv_event_standing_info",
    "1, labelled with how far a replica's KV events are believed: complete, partial, none.",
    ("replica", "rank", "standing"), where="control")
KV_BLOCKS = Family("gauge", "tokenlane_kv_blocks",
    "KV blocks a replica holds by its events, in its block size, by where they lie.",
    ("replica", "rank", "medium"), where="control")
KV_LEDGER_BYTES = Family("gauge", "tokenlane_kv_ledger_bytes",
    "Memory of the control plane's account of a replica's cache (estimated).",
    ("replica", "rank"), where="control")
FLEET_STORE_UP = Family("gauge", "tokenlane_fleet_store_up",
    "1 while the store that gateways share their load through answers, else 0 (fleet.store).",
    where="control")
FLEET_PEERS = Family("gauge", "tokenlane_fleet_peers",
    "Other gateways of the fleet whose load is counted.", where="control")
FLEET_NEWS_AGE = Family("gauge", "tokenlane_fleet_news_age_seconds",
    "Time since any other gateway was last heard.", where="control")
FLEET_BYTES = Family("counter", "tokenlane_fleet_bytes_total",
    "Bytes of messages to the store (sent) and from it (received, one's own included).",
    ("direction",), where="control")
FLEET_UNREAD = Family("counter", "tokenlane_fleet_unread_messages_total",
    "Messages of other gateways that were not understood: of another format, or damaged.",
    where="control")
PEER_IN_FLIGHT = Family("gauge", "tokenlane_fleet_replica_in_flight_requests",
    "Requests the other gateways have in flight at a replica, as far as they said.",
    ("replica",), where="control")
WORKERS = Family("gauge", "tokenlane_workers",
    "Workers by state.", ("state",), where="control")
WORKER_RESTARTS = Family("counter", "tokenlane_worker_restarts_total",
    "Workers started again after they died or hung.", where="control")
CONFIG_RELOADS = Family("counter", "tokenlane_config_reloads_total",
    "Times the settings were read anew: applied, unchanged, or refused for a mistake in them.",
    ("outcome",), where="control")
CONFIG_GOOD = Family("gauge", "tokenlane_config_last_reload_successful",
    "Whether the settings last read are in force; 0: they were refused.", where="control")
CONFIG_LOADED = Family("gauge", "tokenlane_config_last_reload_success_timestamp_seconds",
    "When the settings in force were read, in Unix time.", where="control")
ACCESS_LINES = Family("counter", "tokenlane_access_log_lines_total",
    "Lines written to the access log.")
ACCESS_DROPPED = Family("counter", "tokenlane_access_log_dropped_total",
    "Lines lost: the queue was full (full), or nobody took them (failed: full disk, closed pipe).",
    ("reason",))
TRACES_EXPORTED = Family("counter", "tokenlane_traces_exported_total",
    "Requests whose spans a collector took.")
TRACES_DROPPED = Family("counter", "tokenlane_traces_dropped_total",
    "Requests whose spans were lost: the queue was full (full), or nobody took them (failed).",
    ("reason",))
# Under the names that every Prometheus client has for them, so that any board shows them.
PROCESS_CPU = Family("counter", "process_cpu_seconds_total",
    "CPU time of a process: supervisor, worker-0, ...", ("process",), where="control")
PROCESS_MEMORY = Family("gauge", "process_resident_memory_bytes",
    "Memory of a process that is resident; what processes share counts for each.",
    ("process",), where="control")
PROCESS_START = Family("gauge", "process_start_time_seconds",
    "When a process was started, in Unix time.", ("process",), where="control")
PROCESS_FDS = Family("gauge", "process_open_fds",
    "File descriptors that a process has open.", ("process",), where="control")
PROCESS_MAX_FDS = Family("gauge", "process_max_fds",
    "File descriptors that a process may have.", ("process",), where="control")
BUILD = Family("gauge", "tokenlane_build_info",
    "1, labelled with the version and the build, compiled or plain.", ("version", "build"),
    where="control")
# fmt: on

FAMILIES: tuple[Family, ...] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Family)
)
BY_NAME = {family.name: family for family in FAMILIES}

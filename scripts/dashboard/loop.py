"""The second board: what held the loop, and what the ladder did about it."""

from scripts.dashboard.glance import CONVICTS, GLANCE
from scripts.dashboard.panel import Board, Panel, Query, Row, quantile, rate, total, where

_LOADED = "tokenlane_config_last_reload_success_timestamp_seconds"

_LOOP = Row(
    "The loop",
    (
        Panel(
            "Loop lateness",
            "s",
            (Query(rate("tokenlane_loop_stall_seconds_bucket", "le"), "{{le}}"),),
            "Heartbeats per second by how late they were, all workers. Significant mass above "
            "5 ms is blocking.",
            kind="heatmap",
            width=12,
        ),
        Panel(
            "Heartbeats over 5 ms late",
            "percentunit",
            (
                Query(
                    f"instance_worker:tokenlane_loop_beats_over_5ms:ratio_rate1m{where()}",
                    "worker {{worker}} {{instance}}",
                ),
            ),
            "More than 1 % blocks everybody on that worker.",
            steps=((None, "green"), (0.001, "yellow"), (0.01, "red")),
            width=6,
        ),
        Panel(
            "Loop lateness, p99",
            "s",
            (
                Query(
                    f"instance_worker:tokenlane_loop_stall_seconds:p99_rate1m{where()}",
                    "worker {{worker}} {{instance}}",
                ),
            ),
            "A heartbeat every 5 ms while the loop works.",
            width=6,
        ),
        Panel(
            "Stalls by cause",
            "cps",
            (Query(rate("tokenlane_loop_stalls_total", "cause"), "{{cause}}"),),
            "What held the loop when a heartbeat was late. The admin port's /stalls has stacks.",
            stacked=True,
        ),
        Panel(
            "Time lost to stalls, by cause",
            "percentunit",
            (Query(rate("tokenlane_loop_stall_cause_seconds_total", "cause"), "{{cause}}"),),
            "Seconds of stall per second.",
            stacked=True,
        ),
        Panel(
            "What the stall monitor costs",
            "percentunit",
            (Query(rate("tokenlane_stall_monitor_cpu_seconds_total"), "of a core"),),
            "CPU of its thread and its callbacks, all workers.",
        ),
        Panel(
            "Stages of a request, p99",
            "s",
            (Query(quantile(0.99, "tokenlane_stage_seconds", "stage"), "{{stage}}"),),
            "attempt, first_byte and relay are mostly the replica's; read is the client's.",
            width=24,
        ),
    ),
)

_LADDER = Row(
    "The ladder",
    (
        Panel(
            "Prompts by rung",
            "reqps",
            (Query(rate("tokenlane_tokenize_seconds_count", "rung"), "{{rung}}"),),
            "Where prompts got their ids, cheapest first: token-input, cache, short, threads, "
            "processes, local, bail.",
            stacked=True,
        ),
        Panel(
            "Time to tokenize, p99",
            "s",
            (Query(quantile(0.99, "tokenlane_tokenize_seconds", "rung"), "{{rung}}"),),
            "Render, encode and hash, without waiting.",
        ),
        Panel(
            "Time in line, p99",
            "s",
            (Query(quantile(0.99, "tokenlane_tokenize_queue_seconds", "rung"), "{{rung}}"),),
            "Before a job began. Long lines want more cores.",
        ),
        Panel(
            "Bails by reason",
            "reqps",
            (Query(rate("tokenlane_tokenize_bails_total", "reason"), "{{reason}}"),),
            "Prompts routed by their text, without ids.",
        ),
        Panel(
            "Cache hit rate",
            "percentunit",
            (
                Query(
                    f"instance_cache:tokenlane_token_cache_hits:ratio_rate1m{where()}",
                    "{{cache}} {{instance}}",
                ),
            ),
            "request: whole prompts. prefix: conversations' turns. segment: stretches of text. "
            "Above 70 %: caching works; below 50 %: the pool is needed.",
            steps=((None, "red"), (0.5, "yellow"), (0.7, "green")),
        ),
        Panel(
            "Cache lookups",
            "cps",
            (
                Query(rate("tokenlane_token_cache_hits_total", "cache"), "hits {{cache}}"),
                Query(rate("tokenlane_token_cache_misses_total", "cache"), "misses {{cache}}"),
                Query(rate("tokenlane_token_cache_evictions_total", "cache"), "evicted {{cache}}"),
            ),
            "A rate says little where there are few lookups.",
        ),
        Panel(
            "Cache memory",
            "bytes",
            (
                Query(total("tokenlane_memory_bytes", "part", 'part=~".*-cache"'), "{{part}}"),
                Query(
                    total("tokenlane_token_cache_entries", "cache"),
                    "entries {{cache}}",
                    right_unit="short",
                ),
            ),
            "Summed over the workers: each has caches of its own.",
        ),
        Panel(
            "Engines in use",
            "short",
            (
                Query(
                    total("tokenlane_tokenizer_fast_path_info", "model, part, path"),
                    "{{model}} {{part}}: {{path}}",
                ),
                Query(total("tokenlane_tokenizer_doubts", "model"), "{{model}} doubts"),
            ),
            "Workers by what encodes and renders for them, and reasons to doubt a model's ids.",
        ),
        Panel(
            "Worker restarts",
            "short",
            (
                Query(f"sum(tokenlane_worker_restarts_total{where()})", "restarts"),
                Query(total("tokenlane_workers", "state"), "{{state}}"),
            ),
            "Since the gateway started; its counters go on counting across them.",
        ),
        Panel(
            "Settings read anew",
            "short",
            (
                Query(total("tokenlane_config_reloads_total", "outcome"), "{{outcome}}"),
                Query(f"min(tokenlane_config_last_reload_successful{where()})", "in force"),
                Query(f"time() - max({_LOADED}{where()})", "seconds ago"),
            ),
            "Since the gateway started. In force 0: those last read were refused.",
        ),
        Panel(
            "Access log",
            "cps",
            (
                Query(rate("tokenlane_access_log_lines_total"), "written"),
                Query(rate("tokenlane_access_log_dropped_total", "reason"), "lost: {{reason}}"),
            ),
            "full: more lines than its thread could write. failed: a full disk or a closed pipe.",
        ),
        Panel(
            "Traces",
            "cps",
            (
                Query(rate("tokenlane_traces_exported_total"), "exported"),
                Query(rate("tokenlane_traces_dropped_total", "reason"), "lost: {{reason}}"),
            ),
            "Requests whose spans went to a collector. failed: it did not take them.",
        ),
    ),
)

_PROCESSES = Row(
    "Processes",
    (
        Panel(
            "CPU",
            "short",
            (Query(rate("process_cpu_seconds_total", "process"), "{{process}}"),),
            "Cores that the supervisor and each worker use.",
            width=6,
        ),
        Panel(
            "Memory",
            "bytes",
            (Query(total("process_resident_memory_bytes", "process"), "{{process}}"),),
            "Resident; what processes share counts for each.",
            width=6,
        ),
        Panel(
            "File descriptors",
            "short",
            (
                Query(total("process_open_fds", "process"), "open {{process}}"),
                Query(f"min(process_max_fds{where()})", "limit"),
            ),
            "Half of a worker's are kept for replicas.",
            width=6,
        ),
        Panel(
            "Age",
            "s",
            (
                Query(
                    f"time() - min by (process) (process_start_time_seconds{where()})",
                    "{{process}}",
                ),
            ),
            "A worker that is younger than the supervisor was started again.",
            width=6,
        ),
    ),
)

LOOP = Board(
    "tokenlane-loop",
    "tokenlane: loop and ladder",
    (GLANCE, CONVICTS, _LOOP, _LADDER, _PROCESSES),
)

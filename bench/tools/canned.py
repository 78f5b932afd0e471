"""A replica that answers at once: nginx on four ports with a fixed chat completion, whose usage
says what the request's `X-Prompt-Tokens` says.

nginx discards the body and returns the same bytes, which costs about 20 us a request: what is
measured in front of it is the proxy. The health, model and metric answers let probes see
four healthy vLLM replicas. They do not tokenize, so they get text, as from any proxy.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from bench.tools.demo_model import MODEL
from bench.tools.processes import Process, need_tools

COMPLETION = json.dumps(
    {
        "id": "chatcmpl-canned",
        "object": "chat.completion",
        "created": 1700000000,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "A canned answer, always the same."},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 64, "total_tokens": 72, "completion_tokens": 8},
    },
    separators=(",", ":"),
)  # fmt: skip

MODELS = json.dumps(
    {
        "object": "list",
        "data": [
            {
                "id": MODEL,
                "object": "model",
                "created": 1700000000,
                "owned_by": "vllm",
                "root": MODEL,
                "parent": None,
                "max_model_len": 1_000_000,
            }
        ],
    },
    separators=(",", ":"),
)

# num_gpu_blocks is large: these replicas are said to evict nothing.
METRICS = f"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{MODEL}"}} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="1000000"}} 1.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1700000000.0
"""


def config(ports: Sequence[int], folder: Path) -> str:
    """nginx.conf: one worker, keep-alive without end, bodies up to 64 MiB read and dropped.

    Client keep-alive stays open for longer than any bench, so no proxy pays for reconnects.
    """
    listens = "\n".join(f"        listen 127.0.0.1:{port} backlog=4096;" for port in ports)
    temporary = "\n".join(
        f"    {kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    answer = COMPLETION.replace('"prompt_tokens":64', '"prompt_tokens":$prompt_tokens')
    return f"""\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
    access_log off;
{temporary}
    keepalive_timeout 3600s;
    keepalive_requests 1000000000;
    client_max_body_size 64m;
    map $http_x_prompt_tokens $prompt_tokens {{ default $http_x_prompt_tokens; "" 64; }}
    server {{
{listens}
        location = /health {{ return 200; }}
        location = /v1/models {{ default_type application/json; return 200 '{MODELS}'; }}
        location = /metrics {{ default_type text/plain; root {folder}; }}
        location /tokenize {{ return 404; }}
        location / {{ default_type application/json; return 200 '{answer}'; }}
    }}
}}
"""


class Canned:
    """Four canned replicas for the length of a `with`; `ports` and `urls` say where."""

    def __init__(self, ports: Sequence[int], core: int) -> None:
        need_tools("nginx")
        self.ports = list(ports)
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.folder = tempfile.TemporaryDirectory(prefix="bench-nginx-")
        folder = Path(self.folder.name)
        (folder / "metrics").write_text(METRICS, encoding="utf-8")
        (folder / "nginx.conf").write_text(config(ports, folder), encoding="utf-8")
        argv = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
        self.process = Process("nginx", argv, core=core)

    def __enter__(self) -> Self:
        self.process.__enter__()
        self.process.wait_listening(self.ports[-1])
        return self

    def __exit__(self, *details: object) -> None:
        self.process.__exit__(None, None, None)
        self.folder.cleanup()

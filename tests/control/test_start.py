"""What a process loads before it is asked for anything: what it does not need only costs time."""

import json
import subprocess
import sys

import pytest

# What takes 20 ms or more to load. The tokenizer's engines are the workers' business, HTTP with
# comfort, YAML and the replicas' events the control plane's, and a health check needs nothing.
ENGINES = {"tokenizers", "fastokens", "jinja2", "minijinja", "httptools"}
COMFORTS = {"aiohttp", "prometheus_client", "zmq", "hdrh"}
RARE = {"dns", "huggingface_hub", "opentelemetry"}
NOT_LOADED = {
    "tokenlane.cli.main": {*ENGINES, *COMFORTS, *RARE, "asyncio", "uvloop", "xxhash"},
    "tokenlane.control.supervisor": {*ENGINES, *RARE, "tokenlane.gateway.request"},
    "tokenlane.worker.main": {*COMFORTS, *RARE, "yaml"},
}


@pytest.mark.slow
@pytest.mark.parametrize("module", NOT_LOADED)
def test_a_start_loads_what_it_needs(module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert NOT_LOADED[module].isdisjoint(json.loads(told.stdout))

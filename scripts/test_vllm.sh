#!/bin/sh
# End to end with real vLLM: runs tests/vllm with the project's own Python, and the servers with the
# one that scripts/vllm_python.sh names, builds if need be. Arguments go to pytest.
# VLLM_PYTHON=PATH uses another interpreter that has vLLM.
set -eu
cd "$(dirname "$0")/.."

VLLM_PYTHON=$(sh scripts/vllm_python.sh)
export VLLM_PYTHON
exec "${VENV:-.venv}/bin/python" -m pytest tests/vllm -m vllm --timeout 600 -o timeout_method=thread "$@"

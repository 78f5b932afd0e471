#!/bin/sh
# End to end with real vLLM: builds .venv-vllm (Python 3.11, CPU build, about 2.5 GB and three
# minutes, once per requirements-vllm.txt), then runs tests/vllm with the project's own Python.
# Arguments go to pytest. VLLM_PYTHON=PATH uses another interpreter that has vLLM.
set -eu
cd "$(dirname "$0")/.."

PYTHON="${VENV:-.venv}/bin/python"
VENV_VLLM=.venv-vllm
STAMP="$VENV_VLLM/requirements.installed"

if [ -z "${VLLM_PYTHON:-}" ]; then
    if ! cmp -s requirements-vllm.txt "$STAMP"; then
        python311=$(sh scripts/pythons.sh 3.11 | cut -d ' ' -f 2)
        if [ -z "$python311" ]; then
            echo "vLLM's CPU build needs Python 3.11 here, and none was found; see docs/vllm.md" >&2
            exit 1
        fi
        echo "building $VENV_VLLM with $python311 (about 2.5 GB, some minutes)"
        [ -x "$VENV_VLLM/bin/python" ] || "$python311" -m venv "$VENV_VLLM"
        # The pins are complete: resolving again would pull GPU builds of torchvision and others.
        "$VENV_VLLM/bin/python" -m pip install -q --no-deps -r requirements-vllm.txt
        cp requirements-vllm.txt "$STAMP"
    fi
    VLLM_PYTHON="$VENV_VLLM/bin/python"
fi

export VLLM_PYTHON
exec "$PYTHON" -m pytest tests/vllm -m vllm --timeout 600 -o timeout_method=thread "$@"

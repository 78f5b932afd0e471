#!/bin/sh
# pythons.sh VERSION...: prints "VERSION PATH" for each of these Pythons that runs on this machine:
# those on PATH, and those that pyenv keeps. A pyenv shim without a version behind it does not run.
for version in "$@"; do
    for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
        found=$("$python" -c 'import sys, ensurepip, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
        if [ "$found" = "$version" ]; then
            echo "$version $(command -v "$python")"
            break
        fi
    done
done

"""The machine's facts, which stand beside every number: a number without them says nothing."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokenlane.runtime.build_kind import build_kind

PACKAGES = ("aiohttp", "httptools", "msgspec", "tokenizers", "uvloop", "xxhash")


def first_line(argv: list[str]) -> str | None:
    """First line that a command prints on either stream, or None if it is not there."""
    if shutil.which(argv[0]) is None:
        return None
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=10)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0].strip() if lines else None


def cpu_model(cpuinfo: str) -> str:
    """The processor's name out of the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model"}:
            return value.strip()
    return platform.machine()


def memory_gib(meminfo: str) -> float | None:
    """Total memory out of the text of /proc/meminfo."""
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return round(int(line.split()[1]) / 1024**2, 1)
    return None


def commit() -> str | None:
    """The commit that is measured, marked when files differ from it."""
    head = first_line(["git", "rev-parse", "--short", "HEAD"])
    changed = first_line(["git", "status", "--porcelain", "--untracked-files=no"])
    return f"{head}+changes" if head and changed else head


def version(package: str) -> str | None:
    """Installed version of a distribution."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def facts() -> dict[str, Any]:
    """What must be known to compare a number: hardware, software, and how busy the machine was."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": memory_gib(Path("/proc/meminfo").read_text(encoding="utf-8")),
        "kernel": platform.release(),
        "load_1_min": os.getloadavg()[0],
        "python": sys.version.split()[0],
        "build": build_kind(),
        "packages": {name: version(name) for name in PACKAGES},
        "nginx": first_line(["nginx", "-v"]),
        "wrk": first_line(["wrk", "-v"]),
        "commit": commit(),
    }


def describe(values: dict[str, Any]) -> str:
    """Two lines for the head of a table."""
    packages = ", ".join(f"{name} {at}" for name, at in values["packages"].items() if at)
    return (
        f"{values['cpu']}, {values['cores']} cores, {values['memory_gib']} GiB, "
        f"Linux {values['kernel']}, load {values['load_1_min']:.1f}, commit {values['commit']}\n"
        f"Python {values['python']}, {packages}; in this process the gateway is {values['build']}"
    )

"""How a bench ends: its table on stdout, its JSON where it was asked for, one line if it cannot."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.processes import BenchError


def write_json(result: dict[str, Any], path: Path) -> None:
    """The result, indented."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result)))


def finish(
    run: Callable[[], dict[str, Any]],
    show: Callable[[dict[str, Any]], str],
    json_path: Path | None,
) -> dict[str, Any]:
    """Runs a bench and reports it; exits with a sentence when it cannot be made here."""
    try:
        result = run()
    except BenchError as error:
        sys.exit(str(error))
    print(show(result))
    if json_path is not None:
        write_json(result, json_path)
    return result

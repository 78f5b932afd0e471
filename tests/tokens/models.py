"""Model folders that the tests of this package share."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.tokens.tokenizer import demo_folder

SHARED = Path(__file__).parents[3] / "shared" / "tokenizers"
# Folders of real tokenizers beside the repository, where a developer keeps some.
SHARED_NAMES = ("qwen3", "mistral-v0.3", "deepseek-v4")


def shared(name: str) -> Path:
    """A real tokenizer's folder; skips the test where it is not at hand."""
    folder = SHARED / name
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"no tokenizer {name} in {SHARED}")
    return folder


def folder_with(path: Path, **changes: Any) -> Path:
    """The demo model in `path` with changes to its tokenizer_config.json."""
    path.mkdir(parents=True, exist_ok=True)
    demo = demo_folder()
    (path / "tokenizer.json").write_bytes((demo / "tokenizer.json").read_bytes())
    config = json.loads((demo / "tokenizer_config.json").read_text(encoding="utf-8"))
    (path / "tokenizer_config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    return path

"""Where a model's tokenizer is on this machine: what the replica says, then the hub's cache.

Invariants:
- Only looks: nothing is loaded, written or fetched from anywhere.
- A replica names a folder, never what is read in it: a tokenizer.json, or the folder is not taken.
- Every step that was tried can be told.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FILE = "tokenizer.json"


class TokenizerSource(msgspec.Struct, frozen=True):
    """A model's tokenizer: its folder, None where there is none, and how that came about. asked:
    its replicas say the ids."""

    folder: str | None
    how: str
    asked: bool = False


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps what it fetched, by its own variables. Like there, a `~` stays
    for a user without a home."""
    if environ.get("HF_HUB_CACHE"):
        return Path(os.path.expanduser(environ["HF_HUB_CACHE"]))  # noqa: PTH111 - Path's raises
    home = environ.get("HF_HOME") or str(
        Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    )
    return Path(os.path.expanduser(home)) / "hub"  # noqa: PTH111 - as above


def snapshots(cache: Path, repository: str) -> Iterator[Path]:
    """A model's snapshots in the hub's cache: that of `main` first, then the newest."""
    base = cache / ("models--" + repository.replace("/", "--"))
    try:
        revision = (base / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        revision = ""
    if re.fullmatch(r"[0-9a-f]+", revision):
        yield base / "snapshots" / revision
    try:
        others = sorted(
            (base / "snapshots").iterdir(), key=lambda one: one.stat().st_mtime, reverse=True
        )
    except OSError:
        return
    yield from (one for one in others if one.name != revision)


def repositories(model: str, root: str | None) -> list[str]:
    """Names a model may have on the hub."""
    return [name for name in dict.fromkeys((root, model)) if name and _REPOSITORY.fullmatch(name)]


def _has(folder: Path) -> bool:
    file = folder / FILE
    try:
        return file.is_file() and os.access(file, os.R_OK)
    except OSError:
        return False


def find(model: str, root: str | None, environ: Mapping[str, str]) -> TokenizerSource:
    """A model's tokenizer. root: where the replica says the model is: a folder or a hub's name."""
    steps: list[str] = []
    if root and os.path.isabs(root):  # noqa: PTH117 - a replica's word, not yet a path of ours
        folder = Path(root)
        if _has(folder):
            return TokenizerSource(str(folder), "the model's folder, as its replica names it")
        steps.append(f"no {FILE} here in {root}, where its replica has it")
    cache = hub_cache(environ)
    for name in repositories(model, root):
        for folder in snapshots(cache, name):
            if _has(folder):
                return TokenizerSource(str(folder), "the local hub cache")
        steps.append(f"{name} is not in {cache}")
    return TokenizerSource(None, "; ".join(steps) or "its replica does not say where it is")

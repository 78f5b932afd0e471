"""What the names of a model folder's files say of its tokenizer, before any is opened.

Invariants:
- As vLLM 0.32 looks: in subfolders too, and by names alone.
"""

from collections.abc import Collection, Iterator
from fnmatch import filter as matching
from pathlib import Path

_OTHER_VOCABULARIES = ("tekken.json", "tiktoken.model", "tokenizer.model")


def mistral_layout(files: Collection[str]) -> bool | None:
    """Return whether vLLM reads a folder of these files with mistral_common instead of
    tokenizer.json: it looks for weights and a tokenizer in Mistral's own format. Without weights
    here a tekken.json says yes; other signs of such a repository say None: it may."""
    pieces = bool(matching(files, "tokenizer.model.v*"))
    if matching(files, "consolidated*.safetensors"):
        return pieces or "tekken.json" in files
    if matching(files, "*.safetensors"):
        return False
    if "tekken.json" in files:
        return True
    return None if pieces or "params.json" in files else False


def vocabulary_elsewhere(folder: Path) -> str | None:
    """Return the file that holds a folder's vocabulary where there is no tokenizer.json: only vLLM
    reads it. None where there is, or nothing."""
    if (folder / "tokenizer.json").is_file():
        return None
    return next((name for name in _OTHER_VOCABULARIES if (folder / name).is_file()), None)


def only_replicas(folder: object, vocabulary: str) -> str:
    """Return what to do about such a folder."""
    return (
        f"{folder} has {vocabulary} and no tokenizer.json, so only its replicas make ids;"
        " tokens.ask_replicas asks them"
    )


def repositories(folder: Path) -> Iterator[str]:
    """Yield the names that a folder may have on the hub: its last two parts, as people download to,
    and the one that a hub's cache names."""
    *_, owner, name = ("", "", *folder.parts)
    yield f"{owner}/{name}"
    if owner == "snapshots":
        yield folder.parent.parent.name.removeprefix("models--").replace("--", "/")

"""Which class reads a folder's tokenizer, as vLLM 0.32 and transformers 5.19 choose it.

Invariants:
- The order is theirs: vLLM's own list of model types, then transformers': types whose registered
  class beats the folder's word, the folder's word, the registered class, tokenizer.json as it is.
- The tables are theirs too: tokenizer_classes.json is made from their code by
  scripts/tokenizer_classes.py, which a test in tests/vllm runs again.
- What depends on the name that vLLM was given, or on code of the model's own, is a doubt.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

Json = dict[str, Any]

# It takes tokenizer.json as it is.
AS_FILE = "TokenizersBackend"
_GENERIC = frozenset((AS_FILE, "PythonBackend", "PreTrainedTokenizerFast"))
_MISTRAL = "MistralCommonBackend"


class Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of tokenizer_classes.json; the script that makes it explains each field."""

    made_from: dict[str, str]
    vllm_as_file: frozenset[str]
    ids_as_file: tuple[str, ...]
    registered: dict[str, str]
    forced: frozenset[str]
    aliases: dict[str, str]
    rebuild: dict[str, dict[str, str]]
    components: dict[str, dict[str, Json]]
    python: frozenset[str]


@cache
def tables() -> Tables:
    """Return those of the pinned versions."""
    path = Path(__file__).with_name("tokenizer_classes.json")
    return msgspec.json.decode(path.read_bytes(), type=Tables)


def class_of(config: Json, model: Json) -> str:
    """Return the class for a folder with this tokenizer_config.json and config.json."""
    known, model_type = tables(), str(model.get("model_type") or "")
    if model_type in known.vllm_as_file:
        return AS_FILE
    named = str(config.get("tokenizer_class") or model.get("tokenizer_class") or "")
    named = named.removesuffix("Fast")
    registered = known.registered.get(model_type, "")
    if registered == _MISTRAL and named != _MISTRAL:
        return AS_FILE  # vLLM tells transformers not to look for Mistral's own files
    if registered in _GENERIC:
        return AS_FILE
    forced = model_type in known.forced or model.get("model_name") in known.forced
    chosen = registered if registered and (forced or not named) else named
    chosen = known.aliases.get(chosen, chosen)
    own_way = chosen in known.rebuild or chosen in known.python
    return chosen if own_way and chosen not in _GENERIC else AS_FILE


def own_components(kind: str, model: Json, config: Json) -> Json | None:
    """Return what a class makes of a tokenizer.json's model, whatever else the file says; None
    where it takes the file as it is, or what it makes is not recorded."""
    known = tables().components.get(kind)
    if known is None or model.get("type", "BPE") != "BPE" or "merges" not in model:
        return None
    spaced = config.get("add_prefix_space")
    key = "" if spaced is None else str(bool(spaced)).lower()
    made = known.get(f"{key}/{'legacy' if config.get('legacy') else ''}", known["/"])
    unknown = config.get("unk_token") if made["model"]["unk_token"] is not None else None
    if isinstance(unknown, dict):
        unknown = unknown.get("content")
    vocabulary = {"vocab": model["vocab"], "merges": model["merges"], "unk_token": unknown}
    return {**made, "model": {**made["model"], **vocabulary}}


def read_by_name(names: Iterable[str]) -> str | None:
    """Return the first of these names whose tokenizer.json is read as it is, whatever the folder
    says, if vLLM was given that name and it is no hub's: from the hub's cache it goes by the
    folder."""
    patterns = tables().ids_as_file
    alike = (one for one in names if any(fnmatchcase(one.lower(), each) for each in patterns))
    return next(alike, None)


def doubts(kind: str, config: Json, names: Iterable[str], *, rebuilt: bool) -> list[str]:
    """Return reasons why vLLM may read such a folder otherwise than `kind` does here. rebuilt: this
    class's components are made here too."""
    found = []
    if kind in tables().python:
        found.append(f"{kind} is code in Python and reads no tokenizer.json")
    elif kind in tables().rebuild and not rebuilt:
        found.append(f"{kind} may rebuild what tokenizer.json says")
    if kind != AS_FILE and (name := read_by_name(names)) is not None:
        found.append(f"{kind} is the folder's class, but by the name {name} vLLM may take another")
    auto_map = config.get("auto_map")
    if isinstance(auto_map, list) or (isinstance(auto_map, dict) and "AutoTokenizer" in auto_map):
        found.append("the model ships tokenizer code of its own")
    if config.get("fix_mistral_regex"):
        found.append("fix_mistral_regex may replace the pattern by which text is split")
    return found

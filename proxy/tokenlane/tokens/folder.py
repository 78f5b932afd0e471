"""A model's folder, read as transformers 5 and vLLM 0.32 read it.

Invariants:
- Read once, at load, off the request path; everything wrong here is a ConfigError that names the
  file. Nothing is executed and nothing outside the folder is opened.
- What the files say about the tokenizer itself is `tokenlane.tokens.tokenizer_build`'s matter.

Not covered: vLLM's fallback templates by model type, and what only its flags say
(`--chat-template`, `--default-chat-template-kwargs`, `--tokenizer-mode`, `--max-model-len`).
What differs nevertheless shows when usage.prompt_tokens is compared with ours.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Backend

from tokenlane.errors import ConfigError
from tokenlane.tokens import model_files, tokenizer_build

# Architectures that vLLM renders with code of its own instead of a chat template.
OWN_RENDERER = frozenset(
    "MoonshotKimiaForCausalLM KimiK3ForConditionalGeneration DeepseekV32ForCausalLM "
    "DeepseekV4ForCausalLM DeepseekV4ForConditionalGeneration DeepseekV41ForCausalLM "
    "InklingForCausalLM InklingForConditionalGeneration GptOssForCausalLM".split()
)

# The one of these that has a tokenizer of its own too.
OWN_TOKENIZER = frozenset(("MoonshotKimiaForCausalLM",))
# The one of these whose /tokenize renders a chat with its template, unlike the chat endpoint.
HARMONY = "GptOssForCausalLM"


class Folder(msgspec.Struct, frozen=True):
    """The contents of the files. templates: by name ("default", "tool_use"). processor_template: a
    multimodal model's, used without tools. specials: bos_token and so on, as templates see them.
    max_model_tokens: the context length that vLLM derives without --max-model-len. own_renderer,
    own_tokenizer: vLLM uses code of its own there, which these files do not describe. harmony: it
    is that of gpt-oss. doubts: why ids may differ.
    """

    backend: Backend
    templates: dict[str, str]
    processor_template: str | None
    specials: dict[str, str]
    max_model_tokens: int | None
    own_renderer: bool
    own_tokenizer: bool
    harmony: bool
    doubts: tuple[str, ...]


def read(folder: Path, names: Iterable[str] = ()) -> Folder:
    """Read a model's folder. names: what the model is known by, beside the folder's own name.
    Raise ConfigError."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        vocabulary = model_files.vocabulary_elsewhere(folder)
        if vocabulary is not None:
            raise ConfigError(model_files.only_replicas(folder, vocabulary))
        raise ConfigError(f"{folder}: has no tokenizer.json; name the folder of a fast tokenizer")
    config = _json(folder / "tokenizer_config.json")
    model = _json(folder / "config.json")
    tokenizer = _json(path)
    if "added_tokens_decoder" not in config:
        config |= _json(folder / "special_tokens_map.json")
        added = _json(folder / "added_tokens.json")
        config |= tokenizer_build.described(added, config, tokenizer.get("added_tokens", []))
    try:
        built = tokenizer_build.build(
            tokenizer, config, model, (*names, *model_files.repositories(folder))
        )
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise ConfigError(f"{path}: is not a tokenizer ({error})") from None
    doubts = list(built.doubts)
    processor = any(
        (folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")
    )
    files = {path.name for path in folder.rglob("*")}
    mistral = model_files.mistral_layout(files)
    if mistral is None:
        doubts.append("beside Mistral's own weights vLLM would read Mistral's own tokenizer")
    architectures = set(model.get("architectures") or ())
    templates = _templates(folder, config)
    return Folder(
        backend=built.backend,
        templates=templates,
        processor_template=_processor_template(folder, templates) if processor else None,
        specials=built.specials,
        max_model_tokens=_max_model_tokens(config, model),
        own_renderer=bool(mistral or architectures & OWN_RENDERER),
        own_tokenizer=bool(mistral or architectures & OWN_TOKENIZER),
        harmony=HARMONY in architectures,
        doubts=tuple(doubts),
    )


def _json(path: Path) -> dict[str, Any]:
    """Return a JSON object, {} if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read as JSON ({error}); was it downloaded whole?"
        ) from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must hold one JSON object")
    return value


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return chat templates by name; files beat tokenizer_config.json."""
    found: dict[str, str] = {}
    given = config.get("chat_template")
    if isinstance(given, str):
        found["default"] = given
    elif isinstance(given, list):
        found = {str(entry["name"]): str(entry["template"]) for entry in given}
    elif isinstance(given, dict):
        found = {str(name): str(text) for name, text in given.items()}
    main = folder / "chat_template.jinja"
    if main.is_file():
        found = {"default": main.read_text(encoding="utf-8")}
        extra = folder / "additional_chat_templates"
        for path in sorted(extra.glob("*.jinja")) if extra.is_dir() else ():
            found[path.stem] = path.read_text(encoding="utf-8")
    return found


def _processor_template(folder: Path, templates: dict[str, str]) -> str | None:
    """Return a processor's template: chat_template.jinja, or the older chat_template.json."""
    if (folder / "chat_template.jinja").is_file():
        return templates["default"]
    text = _json(folder / "chat_template.json").get("chat_template")
    return text if isinstance(text, str) else None


def _max_model_tokens(config: dict[str, Any], model: dict[str, Any]) -> int | None:
    text = model.get("text_config")
    model = text if isinstance(text, dict) else model
    if any(_stretches(model.get(name)) for name in ("rope_scaling", "rope_parameters")):
        return None
    lengths = (model.get("max_position_embeddings"), config.get("model_max_length"))
    # model_max_length is 1e30 where it was not set.
    known = [
        int(length) for length in lengths if isinstance(length, int | float) and 0 < length < 1e9
    ]
    return min(known) if known else None


def _stretches(rope: Any) -> bool:
    """Return the factor by which position scaling multiplies the context length, by rules of each
    kind."""
    return isinstance(rope, dict) and rope.get("factor") is not None

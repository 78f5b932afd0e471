"""A model's folder, read as transformers 5 and vLLM 0.32 read it.

Invariants:
- Read once, at load, off the request path; everything wrong here is a ConfigError that names the
  file. Nothing is executed and nothing outside the folder is opened.
- The tokenizer is built in the order in which transformers builds it: tokenizer.json, then the
  components that the tokenizer class overrides, then missing added tokens, then bos/eos.

Not covered yet (`Folder.doubts` says so where the files show it): tokenizer classes that rebuild
their components, other than those of REBUILT; tokenizers without tokenizer.json (sentencepiece,
tiktoken, tekken); special_tokens_map.json and added_tokens.json of folders whose
tokenizer_config.json has no `added_tokens_decoder`; the regex repair for old Mistral files; code
shipped with a model; vLLM's fallback templates by model type; `--chat-template`,
`--default-chat-template-kwargs` and other server flags. What differs nevertheless shows when
usage.prompt_tokens is compared with ours.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from proxy.errors import ConfigError

SPECIAL_NAMES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
# Classes that transformers builds from tokenizer.json alone (and unknown ones become these).
GENERIC = frozenset(("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend"))
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Architectures that vLLM renders with code of its own instead of a chat template.
OWN_RENDERER = frozenset(
    "MoonshotKimiaForCausalLM KimiK3ForConditionalGeneration DeepseekV32ForCausalLM "
    "DeepseekV4ForCausalLM DeepseekV4ForConditionalGeneration DeepseekV41ForCausalLM "
    "InklingForCausalLM InklingForConditionalGeneration GptOssForCausalLM".split()
)


class Folder(msgspec.Struct, frozen=True):
    """What the files say.

    templates: by name ("default", "tool_use"). processor_template: a multimodal model's, used
    without tools. specials: bos_token and so on, as templates see them. max_model_tokens: the
    context length that vLLM derives without --max-model-len. doubts: why ids may differ.
    """

    backend: Backend
    templates: dict[str, str]
    processor_template: str | None
    specials: dict[str, str]
    max_model_tokens: int | None
    own_renderer: bool
    doubts: tuple[str, ...]


def read(folder: Path) -> Folder:
    """Reads a model's folder. Raises ConfigError."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{folder}: has no tokenizer.json; name the folder of a fast tokenizer")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise ConfigError(f"{path}: is no tokenizer ({error})") from None
    config = _json(folder / "tokenizer_config.json")
    model = _json(folder / "config.json")
    doubts = _complete(backend, config, model)
    processor = any(
        (folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")
    )
    if (folder / "tekken.json").is_file() or any(folder.glob("tokenizer.model.v*")):
        doubts.append("vLLM may prefer the Mistral format files of this folder")
    templates = _templates(folder, config)
    return Folder(
        backend=backend,
        templates=templates,
        processor_template=_processor_template(folder, templates) if processor else None,
        specials={
            name: text for name in SPECIAL_NAMES if (text := _content(config.get(name))) is not None
        },
        max_model_tokens=_max_model_tokens(config, model),
        own_renderer=not OWN_RENDERER.isdisjoint(model.get("architectures") or ())
        or (folder / "tekken.json").is_file(),
        doubts=tuple(doubts),
    )


def _json(path: Path) -> dict[str, Any]:
    """A JSON object, {} if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must hold one JSON object")
    return value


def _content(token: Any) -> str | None:
    """A special token's text, given as text or as a described token."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _described(token: Any) -> AddedToken | None:
    if isinstance(token, dict) and isinstance(token.get("content"), str):
        flags = {
            name: bool(token[name])
            for name in ("lstrip", "rstrip", "normalized", "single_word", "special")
            if name in token
        }
        return AddedToken(token["content"], **flags)
    return AddedToken(token, special=True) if isinstance(token, str) else None


def _complete(backend: Backend, config: dict[str, Any], model: dict[str, Any]) -> list[str]:
    """Brings the file's tokenizer to what transformers makes of it; returns the doubts."""
    name = config.get("tokenizer_class") or model.get("tokenizer_class") or "TokenizersBackend"
    kind = str(name).removesuffix("Fast")
    doubts = []
    rebuild = REBUILT.get(kind)
    if rebuild is not None:
        rebuild(backend, config)
    elif kind not in GENERIC:
        doubts.append(f"{kind} may rebuild what tokenizer.json says")
    if config.get("auto_map"):
        doubts.append("the model ships tokenizer code of its own")
    backend.encode_special_tokens = bool(config.get("split_special_tokens", False))
    _add_missing(backend, config)
    if "add_bos_token" in config or "add_eos_token" in config or backend.post_processor is None:
        _set_affixes(backend, config)
    return doubts


def _rebuild_qwen2(backend: Backend, config: dict[str, Any]) -> None:
    spaced = bool(config.get("add_prefix_space"))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=spaced, use_regex=False),
        ]
    )


REBUILT = {"Qwen2Tokenizer": _rebuild_qwen2}


def _add_missing(backend: Backend, config: dict[str, Any]) -> None:
    """Added tokens that tokenizer_config.json names and tokenizer.json lacks or describes
    otherwise, then special tokens that are nowhere yet."""
    present = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder")
    listed = listed if isinstance(listed, dict) else {}
    adding = [
        token
        for _, token in sorted((int(at), _described(given)) for at, given in listed.items())
        if token is not None and repr(token) not in present
    ]
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    known |= {token.content for token in adding}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    extra = list(extra.values()) if isinstance(extra, dict) else list(extra)
    for given in [*(config.get(name) for name in SPECIAL_NAMES), *extra]:
        token = _described(given)
        if token is not None and token.content not in known:
            known.add(token.content)
            adding.append(token)
    if adding:
        backend.add_tokens(adding)


def _set_affixes(backend: Backend, config: dict[str, Any]) -> None:
    """bos and eos around a text, as `add_bos_token` and `add_eos_token` say."""
    bos = _content(config.get("bos_token")) if config.get("add_bos_token") else None
    eos = _content(config.get("eos_token")) if config.get("add_eos_token") else None
    tokens = [(text, backend.token_to_id(text)) for text in (bos, eos) if text is not None]
    before, after = (f"{bos}:0 " if bos else ""), (f" {eos}:0" if eos else "")
    single = f"{before}$A:0{after}"
    pair = f"{single}{f' {bos}:1' if bos else ''} $B:1{f' {eos}:1' if eos else ''}"
    backend.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=tokens
    )


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name; files beat tokenizer_config.json."""
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
    """A processor's template: chat_template.jinja, or the older chat_template.json."""
    if (folder / "chat_template.jinja").is_file():
        return templates["default"]
    text = _json(folder / "chat_template.json").get("chat_template")
    return text if isinstance(text, str) else None


def _max_model_tokens(config: dict[str, Any], model: dict[str, Any]) -> int | None:
    text = model.get("text_config")
    model = text if isinstance(text, dict) else model
    lengths = [model.get("max_position_embeddings"), config.get("model_max_length")]
    # model_max_length is 1e30 where nobody set it.
    known = [
        int(length) for length in lengths if isinstance(length, int | float) and 0 < length < 1e9
    ]
    return min(known) if known else None

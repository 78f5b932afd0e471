"""A `tokenizers.Tokenizer` from the files of a folder, as transformers 5 builds it.

Invariants:
- tokenizer.json decides, except where tokenizer_config.json names a class that builds its own
  components from the vocabulary (REBUILT); `add_bos_token` and `add_eos_token` are ignored, since
  transformers ignores them where there is a tokenizer.json.
- Added tokens in this order: those of tokenizer.json, those of `added_tokens_decoder` that differ,
  named special tokens, extra special tokens. Each only if its text is not there yet.

Not covered (reported as `doubts`): other classes that rebuild their components, models with
tokenizer code of their own, folders without tokenizer.json, and the repair of the split pattern
of old Mistral files.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

Json = dict[str, Any]

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")
# Classes that transformers makes from tokenizer.json alone.
GENERIC = frozenset(("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend"))
# Model types for which transformers takes the generic class whatever the folder names.
GENERIC_TYPES = frozenset(
    (
        "arctic aria bigbird_pegasus canary chameleon chatlm deepseek_ocr deepseek_ocr2 "
        "deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 deepseek_vl deepseek_vl_hybrid "
        "deepseek_vl_v2 ernie4_5 ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite "
        "glm4v glm4v_moe glm_image glmasr got_ocr2 gpt_bigcode granite granitemoe "
        "granitemoehybrid granitemoeshared h2ovl_chat hyperclovax hyperclovax_vlm internlm2 jamba "
        "janus kimi_k25 kimi_linear llava llava_next mimo_v2_flash minicpm3 minicpmv minicpmv4_6 "
        "minicpmv4_7 minimax_m2 ministral ministral3 mistral mistral3 mixtral modernbert "
        "modernbert-decoder molmo molmo2 nemotron nvfp4 olmo2 olmo3 olmo_hybrid opencua "
        "paddleocr_vl persimmon phi3 phi3_v phimoe pixtral smolvlm stablelm step3_vl step3p5 "
        "vipllava voxtral voxtral_realtime"
    ).split()
)
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Built(msgspec.Struct, frozen=True):
    """The tokenizer, its special tokens by name (as templates see them), and why it may differ."""

    backend: Backend
    specials: dict[str, str]
    doubts: tuple[str, ...]


def build(tokenizer: Json, config: Json, model: Json) -> Built:
    """From tokenizer.json, tokenizer_config.json and config.json. Raises what `tokenizers` raises
    for a file it cannot read."""
    kind = _class(config, model)
    config = {**DEFAULT_SPECIALS.get(kind, {}), **config}
    rebuild = REBUILT.get(kind)
    doubts = []
    if rebuild is not None:
        listed = tokenizer.get("added_tokens", [])
        tokenizer = {**tokenizer, **rebuild(tokenizer["model"], config), "added_tokens": []}
        config.setdefault("added_tokens_decoder", {str(one["id"]): one for one in listed})
    elif kind not in GENERIC:
        doubts.append(f"{kind} may rebuild what tokenizer.json says")
    if config.get("auto_map"):
        doubts.append("the model ships tokenizer code of its own")
    backend = Backend.from_str(json.dumps(tokenizer))
    backend.encode_special_tokens = bool(config.get("split_special_tokens", False))
    _add_missing(backend, config)
    return Built(
        backend=backend,
        specials=_named(config),
        doubts=tuple(doubts),
    )


def specials_of(special_tokens_map: Json) -> Json:
    """The named special tokens of an old special_tokens_map.json."""
    return {name: special_tokens_map[name] for name in NAMES if name in special_tokens_map}


def _class(config: Json, model: Json) -> str:
    name = str(config.get("tokenizer_class") or model.get("tokenizer_class") or "TokenizersBackend")
    model_type = model.get("model_type")
    if model_type in GENERIC_TYPES:
        return "TokenizersBackend"
    if model_type == "qwen2":
        # transformers overrules this type's folders, too many of which name another class.
        return "Qwen2Tokenizer"
    return name.removesuffix("Fast")


def _rebuild_qwen2(model: Json, config: Json) -> Json:
    spaced = bool(config.get("add_prefix_space"))
    split = {"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}, "behavior": "Isolated"}
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {**split, "invert": False},
                {**byte_level, "add_prefix_space": spaced},
            ],
        },
        "decoder": {**byte_level, "add_prefix_space": True, "use_regex": True},
        "model": _bpe(model, affix=""),
    }


def _rebuild_llama(model: Json, config: Json) -> Json:
    spaced = config.get("add_prefix_space")
    spaced = True if spaced is None else bool(spaced)
    scheme = "never" if not spaced else "always" if config.get("legacy", False) else "first"
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": scheme,
            "split": False,
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *([strip] if spaced else []),
            ],
        },
        "model": _bpe(model, fuse_unk=True, byte_fallback=True),
    }


def _bpe(
    model: Json, *, affix: str | None = None, fuse_unk: bool = False, byte_fallback: bool = False
) -> Json:
    """A BPE model of this vocabulary and these merges, everything else as the class has it."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": affix,
        "end_of_word_suffix": affix,
        "fuse_unk": fuse_unk,
        "byte_fallback": byte_fallback,
        "ignore_merges": False,
        "vocab": model["vocab"],
        "merges": model["merges"],
    }


REBUILT: dict[str, Callable[[Json, Json], Json]] = {
    "Qwen2Tokenizer": _rebuild_qwen2,
    "LlamaTokenizer": _rebuild_llama,
}
DEFAULT_SPECIALS: dict[str, dict[str, str]] = {
    "Qwen2Tokenizer": dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
    "LlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
}


def _add_missing(backend: Backend, config: Json) -> None:
    present = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder") or {}
    described = sorted((int(at), given) for at, given in listed.items())
    adding = [
        token
        for _, given in described
        if (token := _token(given)) is not None and repr(token) not in present
    ]
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    known |= {token.content for token in adding}
    for given in [*_named_raw(config).values(), *_unnamed(config)]:
        token = _token(given)
        if token is not None and token.content not in known:
            known.add(token.content)
            adding.append(token)
    if adding:
        backend.add_tokens(adding)


def _named_raw(config: Json) -> Json:
    """Special tokens with a name: the usual ones, then the model's own (`image_token`)."""
    named = {name: config[name] for name in NAMES if config.get(name) is not None}
    for name, given in config.items():
        if name.endswith("_token") and name not in named and _text(given) is not None:
            named[name] = given
    extra = config.get("extra_special_tokens")
    return {**named, **extra} if isinstance(extra, dict) else named


def _unnamed(config: Json) -> list[Any]:
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    return extra if isinstance(extra, list) else []


def _named(config: Json) -> dict[str, str]:
    named = {name: _text(given) for name, given in _named_raw(config).items()}
    return {name: text for name, text in named.items() if text is not None}


def _text(token: Any) -> str | None:
    """A special token's text, given as text or described."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _token(given: Any) -> AddedToken | None:
    if isinstance(given, str):
        return AddedToken(given, special=True)
    text = _text(given)
    if text is None:
        return None
    return AddedToken(text, **{name: bool(given[name]) for name in FLAGS if name in given})

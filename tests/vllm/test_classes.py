"""A folder's tokenizer is read by the class that vLLM takes: its tables, recomputed; every model
type with classes that folders name; and the names that vLLM can be given."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from tests.paths import ROOT
from tests.vllm.conftest import Report
from tests.vllm.processes import VLLM_ENVIRONMENT
from tests.vllm.test_render import Reference
from tests.vllm.versions import not_earlier
from tokenlane.protocols.bodies import ChatFields, CompletionFields
from tokenlane.tokens import tokenizer_class
from tokenlane.tokens.tokenizer import Tokenizer

NAMED = (
    None,
    "PreTrainedTokenizerFast",
    "LlamaTokenizerFast",
    "Qwen2Tokenizer",
    "GPT2TokenizerFast",
    "GemmaTokenizer",
    "CohereTokenizerFast",
    "GPTNeoXTokenizerFast",
    "BloomTokenizerFast",
    "FooTokenizer",
)
R1 = "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"


@pytest.fixture(scope="module")
def reference(vllm_python: Path) -> Iterator[Reference]:
    made = Reference(vllm_python)
    yield made
    made.close()


@not_earlier
def test_the_tables_are_those_of_the_pinned_versions(vllm_python: Path) -> None:
    made = subprocess.run(
        [str(vllm_python), str(ROOT / "scripts" / "tokenizer_classes.py")],
        capture_output=True,
        check=True,
        env=os.environ | VLLM_ENVIRONMENT,
    )
    stored = Path(tokenizer_class.__file__).with_name("tokenizer_classes.json")
    assert json.loads(made.stdout) == json.loads(stored.read_bytes())


def _small_tokenizer() -> dict[str, Any]:
    """A BPE of all bytes and a few merges, with components that no class makes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: number for number, text in enumerate(("<s>", "</s>", "<unk>", *alphabet))}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("1", "2")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    made = Backend(models.BPE(vocab=vocab, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    made.add_special_tokens(["<s>", "</s>"])
    parsed: dict[str, Any] = json.loads(made.to_str())
    return parsed


def _components(tokenizer: dict[str, Any]) -> dict[str, Any]:
    return {
        part: tokenizer[part] for part in ("normalizer", "pre_tokenizer", "model", "decoder")
    } | {
        "added_tokens": tokenizer["added_tokens"],
        # A class that has none puts one there that adds nothing.
        "adds": (tokenizer["post_processor"] or {}).get("special_tokens"),
    }


@pytest.mark.timeout(600)
@not_earlier
def test_every_model_type_with_the_classes_that_folders_name(
    reference: Reference, report: Report, tmp_path: Path
) -> None:
    """Every model type that has a class of its own, or is forced to one, and some that have none;
    each with every class of NAMED."""
    tables = tokenizer_class.tables()
    types = sorted({*tables.registered, *tables.forced, *tables.vllm_as_file, "llama", "falcon"})
    tokenizer = json.dumps(_small_tokenizer())
    outcomes: Counter[str] = Counter()
    wrong = []
    for model_type in types:
        for named in NAMED:
            # Each in a folder of its own: vLLM remembers what it read of a path.
            folder = tmp_path / f"{model_type}-{named}"
            folder.mkdir()
            (folder / "tokenizer.json").write_text(tokenizer)
            (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
            config = {"bos_token": "<s>"} | ({"tokenizer_class": named} if named else {})
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
            theirs = reference.ask({"folder": str(folder)})
            if "backend" not in theirs:
                outcomes["types that vLLM does not read so"] += 1
                break
            ours = Tokenizer.load("m", folder, fast=False)
            chosen = tokenizer_class.class_of(config, {"model_type": model_type})
            equal = _components(json.loads(ours.encoder.to_json())) == _components(
                json.loads(theirs["backend"])
            )
            outcomes["doubted" if ours.doubts else "the same tokenizer"] += 1
            named_right = chosen in (theirs["class"], tokenizer_class.AS_FILE)
            if not ours.doubts and not (named_right and equal):
                wrong.append((model_type, named, chosen, theirs["class"], equal, ours.doubts))
    report.add("folders of all model types read by vLLM's class", dict(outcomes))
    assert not wrong, wrong[:5]
    assert outcomes["the same tokenizer"] > 1000


def _taken(vllm_python: Path, name: str, at: Path) -> list[str]:
    """The class that vLLM takes for a model of this name, and its bases."""
    code = (
        "import sys; from vllm.tokenizers import get_tokenizer;"
        "print(*(one.__name__ for one in type(get_tokenizer(sys.argv[1])).__mro__))"
    )
    said = subprocess.run(
        [str(vllm_python), "-c", code, name],
        capture_output=True,
        check=True,
        text=True,
        cwd=at,
        env=os.environ | VLLM_ENVIRONMENT | {"VLLM_LOGGING_LEVEL": "ERROR"},
    )
    return said.stdout.splitlines()[-1].split()


def test_mistrals_own_layout_is_its_replicas(vllm_python: Path, tmp_path: Path) -> None:
    """Beside weights of Mistral's vLLM takes mistral_common; beside others it does not."""
    [pieces] = vllm_python.parent.parent.glob(
        "lib/*/site-packages/mistral_common/data/mistral_instruct_tokenizer_240323.model.v3"
    )
    (tmp_path / "tokenizer.model.v3").write_bytes(pieces.read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps(_small_tokenizer()))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    for weights, mistral in (("model.safetensors", False), ("consolidated.safetensors", True)):
        (tmp_path / weights).touch()
        assert ("MistralTokenizer" in _taken(vllm_python, str(tmp_path), tmp_path)) == mistral
        ours = Tokenizer.load("m", tmp_path, fast=False)
        assert ours.doubts == ()
        for request in (ChatFields(), CompletionFields()):
            assert ours.made_elsewhere(request) == (mistral or isinstance(request, ChatFields))


@pytest.mark.parametrize("given", ["absolute", "relative"])
def test_a_name_decides_only_where_vllm_is_given_a_folder_by_it(
    vllm_python: Path, tmp_path: Path, given: str
) -> None:
    """By an absolute path the folder's class reads it. A relative folder of a listed name is read
    as it is, which the gateway cannot know: a doubt."""
    folder = tmp_path / R1
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(_small_tokenizer()))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizerFast"}')
    (folder / "config.json").write_text('{"model_type": "llama"}')
    taken = _taken(vllm_python, R1 if given == "relative" else str(folder), tmp_path)
    assert taken[1] == {"absolute": "LlamaTokenizer", "relative": tokenizer_class.AS_FILE}[given]
    assert any(R1 in doubt for doubt in Tokenizer.load("m", folder, fast=False).doubts)

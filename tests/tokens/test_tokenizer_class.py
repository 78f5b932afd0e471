"""Whose word counts on a folder's class; tests/vllm/test_classes.py asks vLLM for all of them."""

from typing import Any

import pytest

from tokenlane.tokens.tokenizer_class import AS_FILE, class_of, doubts, read_by_name


@pytest.mark.parametrize(
    ("model_type", "named", "expected"),
    [
        # A registered class beats the folder's where transformers forces it,
        ("qwen3_5", "Qwen2Tokenizer", "Qwen3_5Tokenizer"),
        ("qwen3_5_moe", "Qwen2TokenizerFast", "Qwen3_5Tokenizer"),
        ("qwen2", "LlamaTokenizer", "Qwen2Tokenizer"),
        ("deepseek_v3", "LlamaTokenizerFast", AS_FILE),
        ("phi3", "GPT2Tokenizer", AS_FILE),
        # not where it only registers it,
        ("qwen3_5_text", "Qwen2Tokenizer", "Qwen2Tokenizer"),
        ("qwen3", "PreTrainedTokenizerFast", AS_FILE),
        # and a folder that names none gets it.
        ("qwen3_5_text", None, "Qwen3_5Tokenizer"),
        ("gemma3_text", None, "GemmaTokenizer"),
        ("llama", None, AS_FILE),
        # Registered as generic: whatever the folder says.
        ("granite", "GPT2Tokenizer", AS_FILE),
        ("mistral", "LlamaTokenizer", AS_FILE),
        ("mistral", "MistralCommonBackend", "MistralCommonBackend"),
        # vLLM's own list.
        ("internlm2", "LlamaTokenizer", AS_FILE),
        # Nothing registered: the folder's word, by the class's own name.
        ("llama", "GPT2TokenizerFast", "GPT2Tokenizer"),
        ("llama", "BartTokenizer", "RobertaTokenizer"),
        ("llama", "BloomTokenizerFast", AS_FILE),
        (None, "FooTokenizer", AS_FILE),
        (None, None, AS_FILE),
    ],
)
def test_whose_word_counts(model_type: str | None, named: str | None, expected: str) -> None:
    model = {} if model_type is None else {"model_type": model_type}
    assert class_of({} if named is None else {"tokenizer_class": named}, model) == expected
    assert class_of({}, model if named is None else {**model, "tokenizer_class": named}) == expected


@pytest.mark.parametrize(
    ("kind", "config", "rebuilt", "said"),
    [
        (AS_FILE, {}, False, ""),
        ("LlamaTokenizer", {}, True, ""),
        ("LlamaTokenizer", {}, False, "LlamaTokenizer may rebuild"),
        ("CTRLTokenizer", {}, False, "CTRLTokenizer is code in Python"),
        (AS_FILE, {"auto_map": {"AutoTokenizer": [None, "x.Y"]}}, False, "code of its own"),
        (AS_FILE, {"auto_map": {"AutoModel": "x.Y"}}, False, ""),
        (AS_FILE, {"fix_mistral_regex": True}, False, "fix_mistral_regex"),
    ],
)
def test_what_is_doubted(kind: str, config: dict[str, Any], rebuilt: bool, said: str) -> None:
    found = doubts(kind, config, (), rebuilt=rebuilt)
    assert len(found) == bool(said)
    assert said in "".join(found)


def test_names_that_decide_are_doubted_where_the_folder_says_otherwise() -> None:
    name = "deepseek-ai/DeepSeek-R1-Distill-Llama-70B"
    assert read_by_name(["m", name]) == name
    assert read_by_name(["m", "/models/" + name]) is None
    assert any(name in doubt for doubt in doubts("LlamaTokenizer", {}, [name], rebuilt=True))
    assert doubts(AS_FILE, {}, [name], rebuilt=False) == []

"""A model folder that real vLLM serves without weights: a Llama of two layers around a tokenizer.

Invariants:
- Nothing is downloaded: vLLM fills the weights with random numbers (`--load-format dummy`).
- Tokenizer and chat template are those of the folder given, so that the ids are the gateway's.
"""

import json
from pathlib import Path
from typing import Any

MODEL_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": None,
}


def write_model(folder: Path, tokenizer_folder: Path) -> Path:
    """Write the model into a folder, around the tokenizer of another. Return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tokenizer_folder / name).read_bytes())
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    eos = added["<|im_end|>"]
    vocab = max(added.values()) + 1
    config = MODEL_CONFIG | {"eos_token_id": eos, "vocab_size": vocab}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    return folder

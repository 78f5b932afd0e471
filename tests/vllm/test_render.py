"""Texts and tokenizers equal those of vLLM's own code, over many templates and odd requests."""

import json
import subprocess
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.paths import ROOT
from tests.vllm.conftest import Report
from tests.vllm.processes import VLLM_ENVIRONMENT, write_model
from tests.vllm.prompts import TEXTS, chats
from tests.vllm.shapes import Shapes
from tests.vllm.versions import read_alike
from tokenlane.errors import RequestError, Unrenderable
from tokenlane.protocols.bodies import ChatFields
from tokenlane.tokens.caches.lru import Budget
from tokenlane.tokens.caches.shapes import ShapeCache
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.tokenizer import Tokenizer

SHAPES_PER_TEMPLATE = 2000
SHARED = ROOT.parent / "shared" / "tokenizers"

# Prints everything a template can see, so that nothing can differ unseen.
DUMP = (
    "{%- for m in messages %}{{ m | tojson }}\n{%- endfor %}{{ tools | tojson }}"
    "|{{ documents | tojson }}|{{ reasoning_effort | default('-') }}"
    "|{{ enable_thinking | default('-') }}|{{ add_generation_prompt }}"
    "|{{ custom | default('-') }}|{{ eos_token }}|{{ bos_token | default('-') }}"
)
TEMPLATES = {
    "demo": None,
    "dump": DUMP,
    "dump with a developer": DUMP + "{# 'developer' #}",
    "content as parts": "{%- for m in messages %}{% for c in m['content'] %}{{ c | tojson }}"
    "{% endfor %}{{ m | tojson }}\n{%- endfor %}{{ tools | tojson }}",
    "a function to overrule": "{% for m in messages %}{% if m.role == 'wizard' %}"
    "{{ raise_exception('no wizards') }}{% endif %}{{ m.content }}{% endfor %}",
    "generation tag, loop controls": "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% continue %}{% endif %}{% generation %}{% set x = m.content %}{{ x | trim }}"
    "{% endgeneration %}{{ x is defined }}{% endfor %}{{ messages[0].content.split(' ') }}",
}


class Reference:
    """vLLM's code in a process of its own."""

    def __init__(self, python: Path) -> None:
        script = Path(__file__).with_name("reference.py")
        self._process = subprocess.Popen(
            [str(python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=VLLM_ENVIRONMENT | {"VLLM_LOGGING_LEVEL": "ERROR"},
        )

    def ask(self, question: Any) -> dict[str, Any]:
        """The answer to one line."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(question).encode() + b"\n")
        process.stdin.flush()
        while not (line := process.stdout.readline()).startswith(b"{"):
            assert line, "the reference process died"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends it."""
        self._process.communicate()


@pytest.fixture(scope="module")
def reference(vllm_python: Path) -> Iterator[Reference]:
    made = Reference(vllm_python)
    yield made
    made.close()


def _ours(tokenizer: Tokenizer, body: dict[str, Any], known: ShapeCache) -> tuple[str, str]:
    request = msgspec.json.decode(json.dumps(body).encode(), type=ChatFields)
    try:
        return "text", tokenizer.chat_text(request, known)
    except Unrenderable as unknown:
        return "unknown", unknown.reason
    except RequestError as refused:
        return "error", refused.message


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_equal_vllms_or_are_not_claimed(
    reference: Reference, report: Report, tmp_path: Path, name: str
) -> None:
    folder = write_model(tmp_path / "model", demo_folder())
    if (template := TEMPLATES[name]) is not None:
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text(encoding="utf-8")) | {"chat_template": template}
        path.write_text(json.dumps(config), encoding="utf-8")
    tokenizer = Tokenizer.load("tiny", folder)
    assert "class" in reference.ask({"folder": str(folder)})
    shapes, known = Shapes(seed=len(name)), ShapeCache(Budget(1 << 30, 1 << 20))
    made = (shapes.body() for _ in range(SHAPES_PER_TEMPLATE))
    bodies = list(read_alike([*chats(), *made]))
    outcomes: Counter[str] = Counter()
    wrong = []
    for body in bodies:
        kind, ours = _ours(tokenizer, body, known)
        theirs = reference.ask(body)
        outcomes[f"{kind}/{'text' if 'text' in theirs else 'error'}"] += 1
        if kind == "text":
            wrong += [] if theirs.get("text") == ours else [(body, ours, theirs)]
        elif kind == "error":
            wrong += [] if "error" in theirs else [(body, ours, theirs)]
    assert not wrong, sorted(wrong, key=lambda case: len(str(case)))[:3]
    report.add(
        f"rendered as vLLM does, template '{name}' (ours/theirs)",
        {**outcomes, "of which by a known shape": known.hits},
    )
    assert outcomes["text/text"] > 500


def _token(content: str, **flags: bool) -> dict[str, Any]:
    token = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    return {"content": content, "special": True, **token, **flags}


LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
# name: (folder under shared/tokenizers or "demo", changes to tokenizer_config.json, model type)
FOLDERS: dict[str, tuple[str, dict[str, Any] | None, str]] = {
    "as it is": ("demo", {}, "llama"),
    "no config": ("demo", None, "llama"),
    "class Qwen2": ("demo", {"tokenizer_class": "Qwen2Tokenizer"}, "qwen3"),
    "class Llama": ("demo", {"tokenizer_class": "LlamaTokenizer"}, "llama"),
    "class unknown": ("demo", {"tokenizer_class": "FooTokenizer"}, "llama"),
    "bos and eos": ("demo", {"bos_token": "<|im_start|>", "add_bos_token": True}, "llama"),
    "extra tokens": ("demo", {"additional_special_tokens": ["<n>"], "pad_token": "<p>"}, "llama"),
    "named extras": ("demo", {"extra_special_tokens": {"image_token": "<i>"}}, "llama"),
    "own names": ("demo", {"audio_token": "<a>"}, "llama"),
    "old map": (
        "demo",
        {"special_tokens_map.json": {"pad_token": _token("<pad>"), "cls_token": "<c>",
                                     "additional_special_tokens": ["<n>"], "my_token": "<m>"}},
        "llama",
    ),
    "old added tokens": (
        "demo",
        {"added_tokens.json": {"<y>": 8193, "<x>": 8192, "<s>": 8194}, "bos_token": "<s>"},
        "llama",
    ),
    "described": (
        "demo",
        {"added_tokens_decoder": {"8183": _token("<|endoftext|>", lstrip=True),
                                  "8192": _token("<x>", special=False)}},
        "llama",
    ),
    "split specials": ("demo", {"split_special_tokens": True}, "llama"),
    "qwen3": ("qwen3", {}, "qwen3"),
    "qwen3 generic": ("qwen3", {"tokenizer_class": "PreTrainedTokenizerFast"}, "qwen3"),
    "qwen2 type": ("qwen3", {"tokenizer_class": "LlamaTokenizer"}, "qwen2"),
    "deepseek": ("deepseek-v4", {}, "deepseek_v3"),
    "deepseek bos": ("deepseek-v4", {"add_bos_token": True}, "llama"),
    "deepseek as Llama": ("deepseek-v4", {"tokenizer_class": "LlamaTokenizerFast"}, "llama"),
    "mistral": ("mistral-v0.3", None, "mistral"),
    "mistral Llama": ("mistral-v0.3", LLAMA, "mistral"),
    "Llama-2 legacy": ("mistral-v0.3", LLAMA | {"legacy": True}, "llama"),
    "Llama-2": ("mistral-v0.3", LLAMA | {"legacy": False, "add_prefix_space": False}, "llama"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_tokenizers_are_built_as_transformers_builds_them(
    reference: Reference, report: Report, tmp_path: Path, name: str
) -> None:
    source, changes, model_type = FOLDERS[name]
    origin = demo_folder() if source == "demo" else SHARED / source
    if not origin.is_dir():
        pytest.skip(f"no tokenizer {source} beside this repository")
    folder = write_model(tmp_path / "model", demo_folder())
    (folder / "tokenizer.json").write_bytes((origin / "tokenizer.json").read_bytes())
    config = folder / "tokenizer_config.json"
    config.unlink()
    if changes is not None:
        path = origin / "tokenizer_config.json"
        given = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        files = {name: value for name, value in changes.items() if name.endswith(".json")}
        for file, value in files.items():
            (folder / file).write_text(json.dumps(value), encoding="utf-8")
            given.pop("added_tokens_decoder", None)
        made = {name: value for name, value in (given | changes).items() if name not in files}
        config.write_text(json.dumps(made), encoding="utf-8")
    model = json.loads((folder / "config.json").read_text()) | {"model_type": model_type}
    (folder / "config.json").write_text(json.dumps(model))

    theirs = reference.ask({"folder": str(folder)})
    assert "backend" in theirs, theirs
    ours = Tokenizer.load("tiny", folder)
    backend = json.loads(ours.encoder.to_json())
    assert backend == json.loads(theirs["backend"])
    assert ours.specials == theirs["specials"]
    for special in (True, False):
        answer = reference.ask({"encode": TEXTS, "special": special})
        mine = [array("I", ours.encode(text, add_special_tokens=special)) for text in TEXTS]
        assert [one.tolist() for one in mine] == answer["ids"]
    report.add(f"tokenizer built as transformers does: {name}", theirs["class"])

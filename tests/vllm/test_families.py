"""Folders of many families and real chat templates: every id that is claimed is vLLM's, cold and
from the caches, and nearly all that vLLM answers is claimed."""

import json
import random
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tokens.encode.pieces import ids_of, pieces_of
from tests.vllm import corpus
from tests.vllm.conftest import Report
from tests.vllm.processes import write_model
from tests.vllm.prompts import chats, completions
from tests.vllm.test_render import Reference
from tests.vllm.versions import EARLIER, READ_OTHERWISE, read_alike
from tokenlane.errors import RequestError, Unrenderable
from tokenlane.protocols.bodies import ChatFields
from tokenlane.tokens.caches.lru import Budget
from tokenlane.tokens.caches.shapes import ShapeCache
from tokenlane.tokens.chat.conversation import conversation
from tokenlane.tokens.chat.forms import forms_of, texts_of
from tokenlane.tokens.chat.residual import Unknown
from tokenlane.tokens.chat.template import Template
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.tokenizer import Tokenizer

CLAIMED = 0.95
# Of the templates, each in a test of its own.
PARTS = 18
# Marks, digits and space, on which the patterns of splitting differ.
WORDS = (
    "สวัสดีครับ ทุกท่าน",
    "नमस्ते दुनिया",
    "வணக்கம்",
    "မင်္ဂလာပါ",
    "ជំរាបសួរ",
    "བཀྲ་ཤིས་",
    "مُحَمَّدٌ",
    "שָׁלוֹם",
    "Tiê\u0301ng Viê\u0323t",
    "a\u0300\u0301\u0302",
    "한국어 조합 \u1112\u1161\u11ab",
    "123 4567 ٣٤٥ ½ Ⅷ",
    "   \t \n\n  \r\n",
    "it's WE'LL don\u2019t",
    "snake_case camelCase x+=1;",
    "<s></s><unk><|endoftext|><|im_end|><bos>",
    "🧑🏽\u200d🚀 e\u0301\u200d",
)


def _texts() -> list[str]:
    rng = random.Random(7)
    mixed = [
        rng.choice(("", " ", "\n")).join(rng.choices(WORDS, k=rng.randint(1, 6))) for _ in range(80)
    ]
    return [*WORDS, *mixed, *(str(body["prompt"]) for body in completions())][:220]


def _conversations() -> list[dict[str, Any]]:
    rng = random.Random(8)
    marked = [
        {
            "messages": [
                {"role": "user", "content": " ".join(rng.choices(WORDS, k=3))},
                {"role": "assistant", "content": rng.choice(WORDS)},
                {"role": "user", "content": rng.choice(WORDS)},
            ]
        }
        for _ in range(40)
    ]
    # Truncation is of the ids, whatever the family.
    given = [body for body in read_alike(chats()) if "truncate_prompt_tokens" not in body]
    return [*marked, *given[::2]]


@pytest.fixture(scope="module")
def reference(vllm_python: Path) -> Iterator[Reference]:
    made = Reference(vllm_python)
    yield made
    made.close()


def _rendered(tokenizer: Tokenizer, body: dict[str, Any], known: ShapeCache) -> str | None:
    """The text, cold and twice by way of the cache; None where it is not claimed or refused."""
    request = msgspec.convert(
        {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}, ChatFields
    )
    try:
        cold = tokenizer.chat_text(request)
    except (Unrenderable, RequestError):
        return None
    assert [tokenizer.chat_text(request, known) for _ in range(2)] == [cold, cold]
    return cold


def _ids(tokenizer: Tokenizer, text: str, *, special: bool) -> list[int]:
    """The ids, cold and of the pieces by which they are cached."""
    cold = tokenizer.encode(text, add_special_tokens=special)
    cached = ids_of(
        tokenizer.encoder, pieces_of(tokenizer.encoder, text), add_special_tokens=special
    )
    assert cached == cold, text
    return array("I", cold).tolist()


def _compare(reference: Reference, tokenizer: Tokenizer, outcomes: Counter[str]) -> list[Any]:
    """What differs: texts, then ids of texts and prompts."""
    known = ShapeCache(Budget(1 << 30, 1 << 20))
    wrong: list[Any] = []
    texts = []
    for body in _conversations():
        theirs = reference.ask(body).get("text")
        ours = _rendered(tokenizer, body, known)
        outcomes["answered"] += theirs is not None
        if ours is None:
            continue
        if theirs != ours:
            wrong.append((body, ours, theirs))
        elif ours:
            texts.append(ours)
    outcomes["claimed"] += len(texts)
    for special, batch in ((False, texts), (True, _texts())):
        answer = reference.ask({"encode": batch, "special": special})["ids"]
        for text, ids in zip(batch, answer, strict=True):
            outcomes["compared"] += 2
            if _ids(tokenizer, text, special=special) != ids:
                wrong.append((text, ids))
    outcomes["unequal"] += len(wrong)
    return wrong


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", corpus.FAMILIES)
def test_a_familys_ids_are_vllms(
    reference: Reference, report: Report, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "model"
    if not corpus.make(folder, corpus.FAMILIES[name]):
        pytest.skip(f"the package of {name} cannot be had")
    theirs = reference.ask({"folder": str(folder)})
    assert "class" in theirs, theirs
    tokenizer = Tokenizer.load("m", folder)
    outcomes: Counter[str] = Counter()
    wrong = _compare(reference, tokenizer, outcomes)
    share = outcomes["claimed"] / outcomes["answered"] if outcomes["answered"] else 1.0
    report.add(
        f"family {name}",
        f"{theirs['class']}: compared {outcomes['compared']:,}, unequal {len(wrong)},"
        f" chats claimed {share:.1%}, doubts {len(tokenizer.doubts)}",
    )
    assert not wrong, sorted(wrong, key=lambda case: len(str(case)))[:3]
    assert share >= CLAIMED


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_real_templates_render_as_vllm_renders_them(
    reference: Reference, report: Report, tmp_path: Path, part: int
) -> None:
    found = dict(list(corpus.templates().items())[part::PARTS])
    if EARLIER:
        found = {name: one for name, one in found.items() if name not in READ_OTHERWISE}
    if not found:
        pytest.skip("the package of templates cannot be had")
    total: Counter[str] = Counter()
    wrong = {}
    for name, template in found.items():
        folder = write_model(tmp_path / name, demo_folder())
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text(encoding="utf-8")) | {"chat_template": template}
        path.write_text(json.dumps(config), encoding="utf-8")
        reference.ask({"folder": str(folder)})
        outcomes: Counter[str] = Counter()
        differing = _compare(reference, Tokenizer.load("m", folder), outcomes)
        if differing:
            wrong[name] = min(differing, key=lambda case: len(str(case)))
        if outcomes["claimed"] < CLAIMED * outcomes["answered"]:
            report.add(f"template {name}", dict(outcomes))
        total += outcomes
    report.add(f"real templates, part {part}: {len(found)}", dict(total))
    assert not wrong, wrong
    assert total["claimed"] >= CLAIMED * total["answered"]


CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {}},
    },
}
ASKED = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
SAID = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "v"}]
CALLED = [
    {"role": "assistant", "content": "say", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call00000", "content": "gave"},
]


@pytest.mark.parametrize(("messages", "least"), [(ASKED + SAID, 57), (ASKED + CALLED * 2, 46)])
def test_so_many_real_templates_are_followed(messages: list[dict[str, Any]], least: int) -> None:
    """As docs/ladder.md says."""
    if not corpus.templates():
        pytest.skip("the package of templates cannot be had")
    forms = forms_of(messages)
    assert forms is not None
    variables = {"tools": [TOOL], "bos_token": "<s>", "eos_token": "</s>"}
    followed = 0
    for source in corpus.templates().values():
        template = Template(source)
        try:
            made = template.residual(
                forms, texts_of(messages, forms), variables | {"add_generation_prompt": True}
            )
        except Unknown:
            continue
        followed += made.filled(texts_of(messages, forms)) == template.render(
            conversation(messages, template.content_format),
            variables,
            add_generation_prompt=True,
            continue_final_message=False,
        )
    assert followed >= least

"""Chats of gpt-oss have the ids that vLLM's own code makes of them with openai-harmony."""

import json
import random
from array import array
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer as Backend

from tests.vllm import corpus
from tests.vllm.conftest import Report
from tests.vllm.shapes import Shapes
from tests.vllm.test_render import Reference
from tests.vllm.versions import not_earlier
from tokenlane.errors import RequestError, Unrenderable
from tokenlane.protocols.bodies import ChatFields
from tokenlane.tokens.chat import harmony
from tokenlane.tokens.encode.encoder import Encoder

TEXTS = (
    "Hi there", "", "What is 2+2?\n\nShow it.", "日本語 e\u0301 🙂", " spaced  out ",
    "it's 1,234.5",
    "def f(x):\n\treturn x\n", "ends with <", "</s>|<",
)  # fmt: skip
SCHEMAS: tuple[Any, ...] = (
    None,
    {},
    {"type": "object", "properties": {}},
    {
        "type": "object", "description": "Where, and how.", "required": ["city"],
        "properties": {
            "zone": {"type": "string", "description": "A zone", "default": "here"},
            "city": {"type": "string"},
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
            "days": {"type": "integer", "default": 3},
            "exact": {"type": "boolean", "default": True, "title": "Exact?"},
            "share": {"type": "number", "default": 0.25, "examples": ["0.5", 1], "nullable": True},
            "none": {"type": ["string", "null"], "default": None, "nullable": True, "title": "N"},
            "more": {"anyOf": [{"type": "string"}], "description": "Two\nlines"},
            "small": {"type": "number", "default": 1.0, "enum": [1.0]},
            "places": {
                "type": "array", "items": {
                    "type": "object", "description": "P",
                    "properties": {"a": {"type": "object", "additionalProperties": True}},
                },
            },
            "tags": {"type": "array", "items": {"type": "string"}}, "any": {"type": "array"},
            "near": {
                "type": "object", "description": "A place",
                "properties": {"x": {"type": "number"}, "y": {"type": ["number", "null"]}},
            },
        },
    },
)  # fmt: skip


@pytest.fixture(scope="module")
def reference(vllm_python: Path) -> Iterator[Reference]:
    made = Reference(vllm_python)
    yield made
    made.close()


def _tool(draw: random.Random, name: str) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if (schema := draw.choice(SCHEMAS)) is not None:
        function["parameters"] = schema
    if draw.random() < 0.7:
        function["description"] = draw.choice(("Finds it.", "Two\nlines", "ends\n", ""))
    return {"type": "function", "function": function}


def _body(draw: random.Random) -> dict[str, Any]:
    def text() -> str:
        return draw.choice(TEXTS) + draw.choice(TEXTS)

    messages: list[dict[str, Any]] = []
    if draw.random() < 0.6:
        messages.append({"role": draw.choice(("system", "developer")), "content": text()})
    for turn in range(draw.randint(1, 4)):
        content: Any = text()
        if draw.random() < 0.2:
            content = [{"type": "text", "text": content}]
        messages.append({"role": "user", "content": content})
        if draw.random() < 0.5:
            reasoning = {"reasoning": text()} if draw.random() < 0.6 else {}
            asked = draw.choice((None, text()))
            calls = [
                {
                    "id": f"call{turn}_{number}", "type": "function",
                    "function": {"name": f"find_{number}", "arguments": '{"city": "Rome"}'},
                }
                for number in range(draw.randint(1, 2))
            ]  # fmt: skip
            called = {"role": "assistant", "content": asked, "tool_calls": calls}
            messages.append(called | reasoning)
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": text()} for call in calls
            ]
        if draw.random() < 0.6:
            answer = {"role": "assistant", "content": text()}
            messages.append(answer | ({"reasoning_content": text()} if draw.random() < 0.4 else {}))
        if draw.random() < 0.1:
            messages.append({"role": "developer", "content": text()})
    body: dict[str, Any] = {"model": "gpt-oss", "messages": messages}
    if draw.random() < 0.5:
        body["tools"] = [_tool(draw, f"find_{number}") for number in range(draw.randint(1, 3))]
    if draw.random() < 0.6:
        body["reasoning_effort"] = draw.choice(("low", "medium", "high"))
    return body


@not_earlier
def test_ids_equal_vllms_or_are_not_claimed(reference: Reference, report: Report) -> None:
    folder = corpus.npm_package("gptoss")
    if folder is None:
        pytest.skip("the package of gpt-oss cannot be had")
    encoder = Encoder(Backend.from_file(str(folder / "tokenizer.json")))
    draw, odd, outcomes, wrong = random.Random(1), Shapes(seed=11), Counter[str](), []
    bodies = [*(_body(draw) for _ in range(1500)), *(odd.body() for _ in range(2000))]
    for body in bodies:
        request = msgspec.json.decode(json.dumps(body).encode(), type=ChatFields)
        today = datetime.now().date()  # noqa: DTZ005
        theirs = reference.ask({"harmony": body})
        if datetime.now().date() != today:  # noqa: DTZ005
            continue
        try:
            text = harmony.text(request)
        except (Unrenderable, RequestError) as error:
            outcomes[repr(error)] += 1
            wrong += (
                [(body, "", theirs)] if isinstance(error, RequestError) and "ids" in theirs else []
            )
            continue
        outcomes["same"] += 1
        ids = array("I", encoder.encode(text, add_special_tokens=False)).tolist()
        if theirs.get("ids") != ids:
            wrong.append((body, text, theirs))
    assert not wrong, (len(wrong), min(wrong, key=lambda case: len(str(case[0]))))
    assert outcomes["same"] > 1500, outcomes
    report.add("gpt-oss chats whose ids equal those of vLLM's own code", outcomes["same"])

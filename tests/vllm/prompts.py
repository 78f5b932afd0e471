"""Requests for comparing ids: hand-written ones and generated ones, the same in every run."""

import random
from collections.abc import Iterator
from typing import Any

Body = dict[str, Any]

TEXTS = (
    "",
    "a",
    " ",
    "\n",
    "Hello, world!",
    "  leading and trailing  ",
    "tabs\tand\r\nnewlines\n\n\n",
    "def f(x: int) -> int:\n    return x + 1\n",
    "1234567890 3.14159 1e-9 0xFF",
    "don't I'LL we've",
    "café cafe\u0301 ﬁ Å A\u030a",
    "日本語のテキスト、中文文本，한국어",
    "Привет, мир! Γειά σου Κόσμε",
    "مرحبا بالعالم שלום",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 e\u200bf",
    "\u00a0\u2003\u3000\ufeffspaces",
    "\x00\x01\x7f control",
    "\U0001f600" * 20,
    "x" * 3000,
    "word " * 600,
    "<|im_start|>user\nfake turn<|im_end|>\n",
    "<|endoftext|><|endoftext|>",
    "<|im_start|",
    "<|im_start|>>|<|im_end|>",
    "<think>\nthoughts\n</think>\n\nanswer",
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    "<tool_response>\nok\n</tool_response>",
    "{{ messages }} {% raise %} {# comment #}",
    '{"json": [1, 2.50, null, true], "s": "\\u00e9"}',
    "CONTINUE_FINAL_MESSAGE_TAG ",
)
WORDS = (*TEXTS[1:28], "the", "quick", "brown", "fox", "\n", " ", "ß", "ǅ", "\u0301", "𝔘𝔫𝔦")

TOOLS: list[Body] = [
    {"type": "function", "function": {"name": "now"}},
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather in a city <b>& more</b> é",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "max": 7.0}},
                "required": ["city"],
            },
            "strict": True,
        },
        "unknown": 1,
    },
]


def text(rng: random.Random) -> str:
    """A text of up to eight words, scripts and special tokens mixed."""
    return rng.choice(("", " ", "\n")).join(rng.choice(WORDS) for _ in range(rng.randint(0, 8)))


def completions() -> Iterator[Body]:
    """Completion requests: every text, with and without special tokens, then random ones."""
    for one in TEXTS[1:]:
        yield {"prompt": one}
        yield {"prompt": one, "add_special_tokens": False}
    rng = random.Random(1)
    for _ in range(120):
        yield {"prompt": text(rng) or "a"}


def call(rng: random.Random, number: int) -> Body:
    """A call of a tool, with arguments of all sorts."""
    arguments = rng.choice(
        (
            '{"city": "Zürich", "days": 3}',
            "{}",
            "",
            "no json",
            "[1, 2]",
            '{"a": {"b": [1.0, null]}}',
        )
    )
    function = {"name": rng.choice(("get_weather", "now")), "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def _content(rng: random.Random) -> Any:
    if rng.random() < 0.6:
        return text(rng)
    return [{"type": "text", "text": text(rng)} for _ in range(rng.randint(1, 3))]


def _turns(rng: random.Random) -> list[Body]:
    messages: list[Body] = []
    if rng.random() < 0.6:
        messages.append({"role": rng.choice(("system", "developer")), "content": _content(rng)})
    for _ in range(rng.randint(1, 3)):
        user: Body = {"role": "user", "content": _content(rng)}
        if rng.random() < 0.2:
            user["name"] = "alice"
        messages.append(user)
        assistant: Body = {"role": "assistant", "content": _content(rng)}
        if rng.random() < 0.3:
            key = rng.choice(("reasoning", "reasoning_content"))
            assistant[key] = text(rng)
        if rng.random() < 0.3:
            count = rng.randint(1, 2)
            assistant["tool_calls"] = [call(rng, number) for number in range(count)]
            if rng.random() < 0.5:
                assistant["content"] = None
            messages.append(assistant)
            for number in range(count):
                answer = {"role": "tool", "tool_call_id": f"call_{number}"}
                messages.append(answer | {"content": _content(rng)})
        else:
            messages.append(assistant)
    if rng.random() < 0.8:
        messages.append({"role": "user", "content": _content(rng)})
    return messages


def chats() -> Iterator[Body]:
    """Chat requests: every text in every plain role, then random conversations with options."""
    for one in TEXTS:
        yield {"messages": [{"role": "user", "content": one}]}
    for role in ("system", "developer"):
        for one in TEXTS[:20]:
            yield {
                "messages": [{"role": role, "content": one}, {"role": "user", "content": "Go on."}]
            }
    for one in TEXTS[1:12]:
        yield {
            "messages": [
                {"role": "user", "content": "Say it."},
                {"role": "assistant", "content": one + " "},
            ],
            "continue_final_message": True,
            "add_generation_prompt": False,
        }
    rng = random.Random(2)
    for _ in range(300):
        body: Body = {"messages": _turns(rng)}
        if rng.random() < 0.4:
            body["tools"] = TOOLS[: rng.randint(1, 2)]
            body["tool_choice"] = rng.choice(("none", "auto"))
        if rng.random() < 0.2:
            body["add_generation_prompt"] = False
            final = body["messages"][-1]
            body["continue_final_message"] = final["role"] == "assistant" and not final.get(
                "tool_calls"
            )
        if rng.random() < 0.2:
            body["chat_template_kwargs"] = rng.choice(
                (
                    {"enable_thinking": False},
                    {"enable_thinking": True, "unknown": 1},
                    {"add_generation_prompt": False},
                    {"enable_thinking": None},
                )
            )
        if rng.random() < 0.15:
            body["reasoning_effort"] = rng.choice(("none", "low", "high"))
        if rng.random() < 0.15:
            body["documents"] = [{"title": "t", "text": text(rng)}]
        if rng.random() < 0.1:
            body["add_special_tokens"] = True
        if rng.random() < 0.15:
            body["truncate_prompt_tokens"] = rng.randint(5, 40)
            if rng.random() < 0.5:
                body["truncation_side"] = rng.choice(("left", "right"))
        yield body


def plain_chats(count: int) -> Iterator[Body]:
    """Random conversations, of which nothing but thinking is chosen."""
    rng = random.Random(3)
    for _ in range(count):
        body: Body = {"messages": _turns(rng)}
        if rng.random() < 0.3:
            body["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
        yield body


REFUSED: tuple[Body, ...] = (
    {"messages": []},
    {"messages": {}},
    {"messages": [{"role": "user", "content": "x"}], "tools": []},
    {
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "y"},
        ],
        "continue_final_message": True,
    },
)

"""Chats with tools for comparing answers: calls and their results, several calls at once, every way
to choose a tool, and whatever else changes how an answer is read. The same in every run."""

import json
import random
from collections.abc import Iterator
from typing import Any

from tests.vllm import prompts
from tokenlane.tokens.ids import pack
from tokenlane.tokens.tokenizer import Tokenizer

Body = dict[str, Any]

# Few values each, so that weights that know nothing end a call within a few tokens.
_PARAMETERS: dict[str, Any] = {
    "city": {"enum": ["Oslo", "Zürich", "Rome"]},
    "days": {"type": "integer", "minimum": 1, "maximum": 3},
    "zone": {"enum": ["UTC", "CET"]},
    "unit": {"enum": ["C", "F"]},
    "exact": {"type": "boolean"},
}
# What a model that was taught would say: the parsers read these texts.
_RECORDED = (
    '<tool_call>\n{"name": "%s", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>',
    'Let me look.\n<tool_call>\n{"name": "%s", "arguments": {}}\n</tool_call>',
    (
        '<tool_call>{"name": "%s", "arguments": {"a": [null]}}</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {"zone": ""}}\n</tool_call>'
    ),
    '<tool_call>\n{"name": "%s", "arguments": {"city": "Ro',
    "<tool_call>\nno call at all\n</tool_call>",
    '<think>\nhm, "%s"\n</think>\n\nNothing to call.',
)
_MEMBERS = ("get_weather", "now", "search", "convert")


def tool_chats(tokenizer: Tokenizer, count: int) -> Iterator[Body]:
    """So many chats with tools."""
    rng = random.Random(4)
    # Weights that know nothing would go on with white space wherever JSON allows some.
    blank = {str(one): -100 for one in _blank(tokenizer)}
    for _ in range(count):
        names = rng.sample(_MEMBERS, rng.randint(1, len(_MEMBERS)))
        draw = rng.random()
        # Held to their parameters, where a call has to be made.
        tools = [_tool(rng, one, strict=draw < 0.6) for one in names]
        body: Body = {"messages": _turns(rng, names), "tools": tools}
        if draw < 0.3:
            body["tool_choice"] = "required"
        elif draw < 0.6:
            body["tool_choice"] = {"type": "function", "function": {"name": rng.choice(names)}}
        elif draw < 0.85:
            text = rng.choice(_RECORDED)
            said = text % rng.choice(names) if "%s" in text else text
            body["structured_outputs"] = {"choice": [said]}
            body |= rng.choice(({}, {"tool_choice": "auto"}))
        else:
            body |= rng.choice(({}, {"tool_choice": "auto"}, {"tool_choice": "none"}))
        body |= {"max_tokens": rng.choice((20, 90, 90)), "logit_bias": blank} | _sampled(rng, body)
        if rng.random() < 0.2:
            body["parallel_tool_calls"] = rng.random() < 0.3
        yield body


def chats(count: int) -> Iterator[Body]:
    """So many chats without tools."""
    rng = random.Random(5)
    for body in prompts.plain_chats(count):
        shaped = rng.choice(({}, {}, *_SHAPED))
        made = body | {"max_tokens": rng.randint(3, 24)} | _sampled(rng, body) | shaped
        if "stream" in made:
            made.pop("prompt_logprobs", None)  # refused there
        yield made


_SHAPED: tuple[Body, ...] = (
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"regex": "[a-f]{3,9}"}},
    {"structured_outputs": {"choice": ["yes", "<think>\nhm\n</think>\n\nno"]}},
    {"stop": ["a", "e\n"], "include_stop_str_in_output": True},
    {"documents": [{"title": "t", "text": "Some text."}]},
    {"reasoning_effort": "low"},
    {"return_token_ids": True, "prompt_logprobs": 1},
    {"include_reasoning": False},
    {"min_tokens": 3, "stop_token_ids": [5, 6, 7]},
)


def _sampled(rng: random.Random, body: Body) -> Body:
    """How tokens are chosen and what is told of them."""
    made: Body = {"temperature": 0}
    # vLLM's CPU build dies of a seed where prompts are computed in several steps.
    size_bytes = len(json.dumps(body))
    if rng.random() < 0.6 and size_bytes < 3000:
        made = {"temperature": rng.choice((0.5, 1.0)), "seed": rng.randint(0, 2**31)}
        made |= rng.choice(({}, {"top_p": 0.8}, {"top_k": 20}))
    if rng.random() < 0.3 and made["temperature"] and size_bytes < 1500:
        made["n"] = rng.choice((2, 3))
    if rng.random() < 0.2:
        made |= {"logprobs": True, "top_logprobs": rng.randint(0, 4)}
    if rng.random() < 0.1:
        made |= rng.choice(({"frequency_penalty": 1.5}, {"repetition_penalty": 1.2}))
    if rng.random() < 0.1:
        made["stop"] = rng.choice(("e", ["</tool_call>", "qq"]))
    if rng.random() < 0.5:
        made |= {"stream": True, "stream_options": {"include_usage": True}}
    return made


def _tool(rng: random.Random, name: str, *, strict: bool) -> Body:
    asked = rng.sample(sorted(_PARAMETERS), rng.randint(1, 3))
    function: Body = {"name": name, "strict": strict}
    if rng.random() < 0.7:
        function["description"] = prompts.text(rng)
    function["parameters"] = {
        "type": "object",
        "properties": {one: _PARAMETERS[one] for one in asked},
        "required": asked,
        "additionalProperties": False,
    }
    return {"type": "function", "function": function}


def _turns(rng: random.Random, names: list[str]) -> list[Body]:
    messages: list[Body] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": prompts.text(rng)})
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": prompts.text(rng) or "Go on."})
        calls = [prompts.call(rng, number) for number in range(rng.choice((0, 1, 1, 2, 3)))]
        for one in calls:
            one["function"]["name"] = rng.choice(names)
        said: Body = {"role": "assistant", "content": rng.choice((None, prompts.text(rng)))}
        if not calls:
            messages.append(said | {"content": said["content"] or "Well."})
            continue
        messages.append(said | {"tool_calls": calls})
        messages += [
            {"role": "tool", "tool_call_id": one["id"], "content": prompts.text(rng)}
            for one in calls
        ]
    if rng.random() < 0.5:
        messages.append({"role": "user", "content": prompts.text(rng) or "Go on."})
    return messages


def _blank(tokenizer: Tokenizer) -> Iterator[int]:
    for one in range(tokenizer.encoder.vocabulary_size):
        text = tokenizer.decode(pack([one]))
        if text and not text.strip():
            yield one

"""A model of another kind on real vLLM: its tokenizer puts a token of its own before each text, and
its template prints calls and names. Which endpoints put the token before what their template made,
and what a template sees of a response."""

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tokens.models import marked_folder
from tests.vllm.conftest import Report
from tests.vllm.processes import Server, healthy, vllm_server, write_model
from tokenlane.protocols.bodies import (
    ChatFields,
    CompletionFields,
    Conversation,
    MessagesFields,
    ResponsesFields,
)
from tokenlane.tokens.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "hi there"}]
SHOWN = """
{%- for m in messages %}{{ m.name }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}
{%- endfor %}"""
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
TALK = [
    {"role": "user", "content": "hi", "name": "anna", "task": "t"},
    CALL,
    {"type": "function_call_output", "call_id": "c1", "output": "ok"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("marked")
    marked = marked_folder(made / "tokenizer")
    file = marked / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["chat_template"] += SHOWN
    file.write_text(json.dumps(config), encoding="utf-8")
    return write_model(made / "tiny", marked)


@pytest.fixture(scope="module")
def server(vllm_python: Path, folder: Path) -> Iterator[Server]:
    with healthy(vllm_server("vllm-marked", vllm_python, folder)) as server:
        # vLLM 0.32.0's attention on a CPU with AMX ends with an illegal instruction where the first
        # prompt has few tokens; behind one of 40, short ones are answered.
        first = {"model": "tiny", "prompt": [*range(100, 140)], "max_tokens": 1}
        assert server.request("POST", "/v1/completions", first)[0] == 200
        yield server


def test_prompts_have_as_many_tokens_as_here(server: Server, folder: Path, report: Report) -> None:
    tokenizer = Tokenizer.load("tiny", folder)
    (text,) = tokenizer.completion_ids(
        msgspec.json.decode(b'{"prompt":"hi there"}', type=CompletionFields)
    )
    messages = msgspec.Raw(msgspec.json.encode(MESSAGES))
    chats: dict[str, Conversation] = {
        "/v1/chat/completions": ChatFields(messages=messages),
        "/v1/messages": MessagesFields(messages=messages),
        "/v1/responses": ResponsesFields(input=msgspec.Raw(b'"hi there"')),
    }
    ours = {path: tokenizer.chat_ids(request) for path, request in chats.items()}
    ours["/v1/completions"] = text
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "hi there", "max_tokens": 1},
        "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
        "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
        "/v1/responses": {"input": "hi there", "max_output_tokens": 1},
    }
    counted = {}
    for path, body in bodies.items():
        status, told = server.request("POST", path, {"model": "tiny", **body})
        assert status == 200, told
        usage = json.loads(told)["usage"]
        counted[path] = usage.get("prompt_tokens", usage.get("input_tokens"))
    assert counted == {path: len(ids) // 4 for path, ids in ours.items()}
    report.add("special tokens of a tokenizer: endpoints that count as the gateway", len(counted))


def test_a_template_sees_of_a_response_what_it_sees_here(
    server: Server, folder: Path, report: Report
) -> None:
    """Calls with their name first, and the names of who speaks; counted where vLLM renders
    nothing for others."""
    tokenizer = Tokenizer.load("tiny", folder)
    made = msgspec.Raw(msgspec.json.encode(TALK))
    ids = tokenizer.chat_ids(ResponsesFields(input=made))
    body = {"model": "tiny", "input": TALK}
    status, told = server.request("POST", "/v1/responses/render", body)
    if status == 200:
        assert json.loads(told)["token_ids"] == array("I", ids).tolist()
    status, told = server.request("POST", "/v1/responses", {**body, "max_output_tokens": 1})
    assert status == 200, told
    assert json.loads(told)["usage"]["input_tokens"] == len(ids) // 4
    report.add("responses: calls and names shown as here", 1)

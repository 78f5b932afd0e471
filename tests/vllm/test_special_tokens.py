"""A tokenizer that puts a token of its own before each text, on real vLLM: which of its endpoints
put it before what their template made."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tokens.models import marked_folder
from tests.vllm.conftest import Report
from tests.vllm.processes import Server, healthy, vllm_server, write_model
from tokenlane.protocols import prompt_fields
from tokenlane.tokens.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "hi there"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("marked")
    return write_model(made / "tiny", marked_folder(made / "tokenizer"))


@pytest.fixture(scope="module")
def server(vllm_python: Path, folder: Path) -> Iterator[Server]:
    with healthy(vllm_server("vllm-marked", vllm_python, folder)) as server:
        yield server


def test_prompts_have_as_many_tokens_as_here(server: Server, folder: Path, report: Report) -> None:
    tokenizer = Tokenizer.load("tiny", folder)
    (text,) = tokenizer.completion_ids(
        msgspec.json.decode(b'{"prompt":"hi there"}', type=prompt_fields.CompletionFields)
    )
    messages = msgspec.Raw(msgspec.json.encode(MESSAGES))
    chats: dict[str, prompt_fields.Conversation] = {
        "/v1/chat/completions": prompt_fields.ChatFields(messages=messages),
        "/v1/messages": prompt_fields.MessagesFields(messages=messages),
        "/v1/responses": prompt_fields.ResponsesFields(input=msgspec.Raw(b'"hi there"')),
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

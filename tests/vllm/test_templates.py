"""Two more chat templates, written for this with the features of real ones, on real servers; and
both models behind one gateway."""

import http.client
import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.vllm import prompts
from tests.vllm.conftest import FORWARDED, IDS, Report
from tests.vllm.processes import Server, vllm_server, write_model
from tests.vllm.test_forwarding import bodies, forwarded, said
from tests.vllm.test_kv_events import Gateway, events_flags, settle, wait_for
from tests.vllm.versions import of_these, read_alike
from tokenlane.protocols.bodies import ChatFields, Kind
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.tokenizer import Tokenizer

Body = dict[str, Any]
PLAIN = 450

# All system messages become one, with the tools in it; thoughts are shown after the last question
# only; results of tools are a user's turn.
MERGED = """\
{%- set seen = namespace(system='', question=-1) %}
{%- for m in messages %}
    {%- if m.role in ('system', 'developer') and m.content %}
        {%- set seen.system = seen.system + ('\\n\\n' if seen.system else '') + m.content %}
    {%- elif m.role == 'user' %}
        {%- set seen.question = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- if seen.system or tools %}
    {{- '<|im_start|>system\\n' + seen.system }}
    {%- if tools %}
        {{- '\\n# Tools\\n' }}
        {%- for tool in tools %}{{ tool.function | tojson(indent=2) }}{{ '\\n' }}{% endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {{- '<|im_start|>user\\n' + (m.content or '') | trim + '<|im_end|>\\n' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if m.reasoning_content and loop.index0 > seen.question %}
            {{- '<think>\\n' + m.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- m.content or '' }}
        {%- for call in m.tool_calls or [] %}
            {{- '\\n<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + (m.content or '') + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
# Content as parts, a token in front of all, tools before the last question, documents, and no
# generation prompt behind an assistant's own words.
PARTS = """\
{%- macro text(content) %}
    {%- if content is string %}{{ content }}
    {%- else %}{% for part in content or [] %}{{ part.text }}{% endfor %}{% endif %}
{%- endmacro %}
{{- bos_token }}
{%- set last = messages | selectattr('role', 'equalto', 'user') | list | length %}
{%- set seen = namespace(questions=0) %}
{%- for document in documents or [] %}
    {{- '[' ~ loop.index ~ '] ' ~ document.title ~ ': ' ~ document.text ~ '\\n' }}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {%- set seen.questions = seen.questions + 1 %}
        {%- if tools and seen.questions == last %}
            {{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' + text(m['content']) + '[/INST]' }}
    {%- elif m.role == 'assistant' %}
        {%- if m.reasoning_content %}{{ '[THINK]' + m.reasoning_content + '[/THINK]' }}{% endif %}
        {{- text(m['content']) }}
        {%- if m.tool_calls %}
            {{- '[TOOL_CALLS]' }}
            {%- for call in m.tool_calls %}
                {%- if not loop.first %}{{ ', ' }}{% endif %}
                {{- '{"id": ' + call.id | tojson + ', "name": ' + call.function.name | tojson }}
                {{- ', "arguments": ' + call.function.arguments | tojson + '}' }}
            {%- endfor %}
        {%- endif %}
        {{- eos_token }}
    {%- elif m.role == 'tool' %}
        {{- '[TOOL_RESULTS]' + text(m['content']) + '[/TOOL_RESULTS]' }}
    {%- elif m.role in ('system', 'developer') %}
        {{- '[SYSTEM_PROMPT]' + text(m['content']) + '[/SYSTEM_PROMPT]' }}
    {%- else %}
        {{- raise_exception('Unknown role: ' + m.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != 'assistant' %}{{ '[ANSWER]' }}{% endif %}
"""


def _folder(folder: Path, template: str, **config: Any) -> Path:
    """The tiny model with another template and more in its tokenizer's config."""
    write_model(folder, demo_folder())
    path = folder / "tokenizer_config.json"
    given = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(given | {"chat_template": template} | config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By model: one with the demo's vocabulary, and one that merges less of it, so that the same
    text has other ids."""
    root = tmp_path_factory.mktemp("templates")
    merged = _folder(root / "merged", MERGED)
    parts = _folder(root / "parts", PARTS, bos_token="<|endoftext|>")
    path = parts / "tokenizer.json"
    made = json.loads(path.read_text(encoding="utf-8"))
    made["model"]["merges"] = made["model"]["merges"][:2000]
    path.write_text(json.dumps(made), encoding="utf-8")
    return {"merged": merged, "parts": parts}


@pytest.fixture(scope="module")
def servers(
    vllm_python: Path, folders: dict[str, Path], report: Report
) -> Iterator[dict[str, Server]]:
    """One for each model; both publish KV events, and evict nothing."""
    room = ("--num-gpu-blocks-override", "2000", "--max-model-len", "32768")
    made = {
        model: vllm_server(
            f"vllm-{model}",
            vllm_python,
            folder,
            *events_flags(),
            *room,
            *("--served-model-name", model),
        )
        for model, folder in folders.items()
    }
    try:
        for server in made.values():
            server.wait()
        yield made
    finally:
        for server in made.values():
            server.stop()


@pytest.fixture(scope="module")
def tokenizers(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {model: Tokenizer.load(model, folder) for model, folder in folders.items()}


@pytest.mark.parametrize("model", ["merged", "parts"])
def test_ids_and_forwarding(
    servers: dict[str, Server], tokenizers: dict[str, Tokenizer], report: Report, model: str
) -> None:
    """What vLLM says it answered has our ids; the same ids in the text's place change nothing."""
    server, tokenizer = servers[model], tokenizers[model]
    wrong, equal, same = [], 0, 0
    made = [*bodies(Kind.CHAT), *read_alike(prompts.plain_chats(PLAIN))]
    for number, body in enumerate(made):
        # Each computes all of its prompt: a cached beginning would be another computation.
        asked = body | {"model": model, "temperature": 0, "max_tokens": 4}
        salted = asked | {"cache_salt": f"text {number}", "return_token_ids": True}
        status, by_text = server.post("/v1/chat/completions", salted)
        assert status == 200, (body, by_text)
        ids = array("I", tokenizer.chat_ids(_fields(body))).tolist()
        if ids != by_text["prompt_token_ids"] or len(ids) != by_text["usage"]["prompt_tokens"]:
            wrong.append(body)
            continue
        equal += 1
        with_ids = forwarded(tokenizer, Kind.CHAT, asked)
        if with_ids is None:
            continue
        given = with_ids | {"cache_salt": f"ids {number}", "return_token_ids": True}
        status, by_ids = server.post("/v1/chat/completions", given)
        assert status == 200, (given, by_ids)
        wrong += (
            []
            if said(json.dumps(by_text).encode()) == said(json.dumps(by_ids).encode())
            else [body]
        )
        same += 1
    report.prove(IDS, f"template '{model}'", equal)
    report.prove(FORWARDED, f"template '{model}'", same)
    assert not wrong, wrong[:3]
    assert equal >= of_these(800)
    assert same >= of_these(550)


def _fields(body: Body) -> ChatFields:
    return msgspec.json.decode(msgspec.json.encode(body), type=ChatFields)


def _chat(gateway: Server, body: Body) -> tuple[http.client.HTTPMessage, Body]:
    """Headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    try:
        head = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), head)
        answer = connection.getresponse()
        read = answer.read()
        assert answer.status == 200, read
        return answer.headers, json.loads(read)
    finally:
        connection.close()


def test_two_models_share_nothing(
    servers: dict[str, Server],
    folders: dict[str, Path],
    tokenizers: dict[str, Tokenizer],
    report: Report,
) -> None:
    """The same conversations to both, in turn: each is served by its own server, counted by its
    own tokenizer, and found in its own cache alone."""
    backends = tuple(servers.values())
    gateway = Gateway("gateway-two", folders, *backends)
    try:
        gateway.wait()
        wait_for(lambda: all(map(gateway.complete, backends)), 10.0)
        asked = right = 0
        for talk in range(12):
            messages = [{"role": "system", "content": f"Talk {talk}. " + "Some rules. " * 60}]
            seen = dict.fromkeys(servers, 0)
            for turn in range(4):
                messages.append({"role": "user", "content": f"{turn} " + prompts.TEXTS[11] * 5})
                for model, server in servers.items():
                    body = {"model": model, "messages": list(messages), "max_tokens": 1}
                    settle()
                    headers, told = _chat(gateway, body)
                    own = tokenizers[model].chat_ids(_fields(body))
                    cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
                    asked += 1
                    right += (
                        headers["x-tokenlane-replica"] == server.url.removeprefix("http://")
                        and told["model"] == model
                        and told["usage"]["prompt_tokens"] == len(own) // 4
                        and int(headers["x-tokenlane-cached-tokens"]) == cached
                        and (cached > 0) == (turn > 0)
                        and cached >= seen[model] // 32 * 32 - 32
                    )
                    seen[model] = len(own) // 4
        report.add(
            "two models, two tokenizers, one gateway: answers of the right server, count and cache",
            f"{right} of {asked}",
        )
        assert right == asked
        assert not [
            line
            for line in gateway.page().splitlines()
            if line.startswith("tokenlane_prompt_token_mismatches_total{")
            and not line.endswith(" 0.0")
        ]
    finally:
        gateway.stop()

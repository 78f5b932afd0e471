"""The simulated replica beside a real one: the same requests, answers of the same shape.

Compared: status, header names, field order, every value that is not a matter of the model's
taste or the clock; of streams each event; of errors type, field and code, and the message where
vLLM itself wrote it (not its validation library).
"""

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.simulator.client import CHAT, TEXT, Answer, ask
from tests.vllm.processes import Server
from tests.vllm.versions import not_earlier
from tokenlane.simulator.engine import Engine
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet
from tokenlane.simulator.vllm_metrics import exposition

MESSAGES = [{"role": "user", "content": "hello there my friend, " * 12}]
IDS = {"return_token_ids": True}
STREAM = {"stream": True}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
EVERY = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    **IDS,
}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 3, **fields}


def text(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 3, **fields}


ANSWERS: list[tuple[str, Any]] = [
    *((CHAT, chat(**fields)) for fields in ({}, IDS, STREAM, USAGE, EVERY)),
    (CHAT, chat(n=2, temperature=1)),
    (CHAT, chat(max_tokens="2")),
    (CHAT, chat(kv_transfer_params={"prompt_token_ids": [5, 6, 7]}, **IDS)),
    *((TEXT, text("a b c", **fields)) for fields in ({}, IDS, STREAM, USAGE, EVERY)),
    (TEXT, text(["a b c", "d e"])),
    (TEXT, text([1, 2, 300], **IDS)),
    (TEXT, text([[1, 2], [3]], **IDS)),
    ("/tokenize", {"model": "tiny", "prompt": "import os é", "return_token_strs": True}),
    ("/tokenize", {"model": "tiny", "messages": MESSAGES}),
    ("/detokenize", {"model": "tiny", "tokens": [1, 87, 521, 99_999]}),
]
ERRORS: list[tuple[str, Any]] = [
    *((CHAT, body) for body in (b'{"model": "tiny", ', b"\xff", b"", b"[]", {"model": "tiny"})),
    (CHAT, chat(messages=[])),
    (CHAT, chat(messages="x")),
    (CHAT, chat(messages=[{"role": "user", "content": [IMAGE]}])),
    *((CHAT, chat(max_tokens=tokens)) for tokens in (0, -1, 40_000)),
    *((CHAT, chat(n=count)) for count in (0, "x")),
    (CHAT, chat(model="nope")),
    (CHAT, chat(temperature=-1)),
    (CHAT, chat(cache_salt="")),
    (CHAT, chat(stream_options={})),
    (CHAT, chat(stream_options={"include_usage": False})),
    *((TEXT, text(prompt)) for prompt in ([], "", ["a", ""], [999_999], 3, None)),
    *((TEXT, text([1] * length)) for length in (32_768, 32_769, 33_000)),
    (TEXT, text([1] * 32_769, stream=True)),
    (TEXT, text("hello " * 40_000)),
    (TEXT, text("x", model="nope")),
    ("/nowhere", {}),
]  # fmt: skip
GETS = ["/health", "/ping", "/version", "/v1/models", "/load", "/nowhere", TEXT]
# Texts and ids of a model with random weights, and what depends on the clock.
LOOSE = {"content", "text", "created", "system_fingerprint", "prompt", "root"}
# A server that is short of processor puts two tokens into one event of a stream, now and then.
TRIES = 4
VALIDATION = re.compile(r"^\d+ validation errors?:")


def shape(value: Any, key: str = "") -> Any:
    """A value without what may differ; lists of ids become their length."""
    if isinstance(value, dict):
        return {name: shape(one, name) for name, one in value.items()}
    if isinstance(value, list):
        numbers = key in ("token_ids", "prompt_token_ids", "tokens")
        return len(value) if numbers else [shape(one, key) for one in value]
    if key == "id" and isinstance(value, str):
        return value.partition("-")[0] if "-" in value else value
    if key == "message" and VALIDATION.match(str(value)):
        return "validation"
    return type(value).__name__ if key in LOOSE and value != "" else value


def view(answer: Answer) -> list[Any]:
    """What is compared; JSON as text, so that the order of fields counts."""
    seen: list[Any] = [answer.status, sorted(answer.headers), answer.headers.get("content-type")]
    if "event-stream" in (seen[2] or ""):
        return [*seen, answer.chunks, *(json.dumps(shape(event)) for event in answer.events)]
    return [*seen, json.dumps(shape(answer.json)) if answer.body else ""]


async def compare(
    real: str, simulated: str, path: str, body: Any, *, method: str = "POST"
) -> list[tuple[Any, Any]]:
    """Where the two differ, (real, simulated)."""
    real_view, simulated_view = [
        view(await ask(url, path, body, method=method)) for url in (real, simulated)
    ]
    if len(real_view) != len(simulated_view):
        return [(real_view, simulated_view)]
    return [pair for pair in zip(real_view, simulated_view, strict=True) if pair[0] != pair[1]]


@not_earlier
async def test_same_answers(replicas: tuple[Server, Server], model_folder: Path) -> None:
    assert await differing(replicas[0].url, model_folder) == []


async def differing(real: str, model_folder: Path) -> list[Any]:
    """All differences, case by case."""
    settings = SimulatorSettings(
        model="tiny", folder=str(model_folder), block_tokens=32, max_model_tokens=32_768
    )
    found: list[Any] = []
    async with SimulatedFleet(settings) as fleet:
        (simulated,) = await fleet.start(1)
        for url in (real, simulated):
            assert (await ask(url, "/reset_prefix_cache")).status == 200
        cases = [("POST", path, body) for path, body in [*ANSWERS, *ERRORS]]
        cases += [("GET", path, None) for path in GETS]
        for method, path, body in cases:
            pairs = await compare(real, simulated, path, body, method=method)
            for _ in range(TRIES):
                if pairs:
                    pairs = await compare(real, simulated, path, body, method=method)
            if pairs:
                found.append((method, path, str(body)[:200], pairs))
    return found


def sample_names(text: str) -> set[tuple[str, ...]]:
    """Name and label names of each sample."""
    return {
        (sample.name, *sorted(sample.labels))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.startswith("vllm:cache_config_info")
    }


@not_earlier
async def test_every_simulated_metric_is_vllms(replicas: tuple[Server, Server]) -> None:
    real = (await ask(replicas[0].url, "/metrics", method="GET")).body.decode()
    engine = Engine(SimulatorSettings(model="tiny"))
    assert sample_names(exposition(engine, 0.0).decode()) <= sample_names(real)
    assert 'num_gpu_blocks="' in real

"""Forwarded ids give what the text gives: the same greedy answer and the same usage."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.vllm import prompts
from tests.vllm.conftest import FORWARDED, Report
from tests.vllm.processes import Server
from tests.vllm.test_gateway import ask
from tokenlane.gateway.replica_body import ReplicaBody
from tokenlane.protocols.bodies import ChatBody, CompletionBody, Kind, inspect
from tokenlane.tokens.tokenizer import Tokenizer

Body = dict[str, Any]


def forwarded(tokenizer: Tokenizer, kind: Kind, asked: Body) -> Body | None:
    """The body as a replica gets it, None where it goes on unchanged."""
    raw = json.dumps(asked).encode()
    body = inspect(kind, raw)
    assert isinstance(body, ChatBody | CompletionBody)
    if isinstance(body, ChatBody):
        sequences: tuple[bytes, ...] = (tokenizer.chat_ids(body),)
    else:
        sequences = tokenizer.completion_ids(body)
    made = asyncio.run(ReplicaBody.taken_apart(raw).with_ids(body, sequences))
    return None if made == raw else json.loads(made)


def said(answer: bytes) -> tuple[list[Any], Any]:
    """What was generated, and what was counted."""
    value = json.loads(answer)
    texts = [one.get("text", one.get("message", {}).get("content")) for one in value["choices"]]
    usage = value["usage"]
    return texts, (usage["prompt_tokens"], usage["completion_tokens"])


def bodies(kind: Kind) -> Iterator[Body]:
    made = prompts.chats() if kind is Kind.CHAT else prompts.completions()
    for body in made:
        yield body | {"max_tokens": 4, "temperature": 0}


@pytest.mark.parametrize(
    ("kind", "path"),
    [(Kind.COMPLETION, "/v1/completions"), (Kind.CHAT, "/v1/chat/completions")],
)
def test_ids_in_the_place_of_text_change_nothing(
    replicas: tuple[Server, Server], tokenizer: Tokenizer, report: Report, kind: Kind, path: str
) -> None:
    wrong, compared = [], 0
    for body in bodies(kind):
        with_ids = forwarded(tokenizer, kind, body)
        if with_ids is None:
            continue
        status, _, by_text = ask(replicas[0], path, body)
        status_of_ids, _, by_ids = ask(replicas[1], path, with_ids)
        assert (status, status_of_ids) == (200, 200), (body, by_text, by_ids)
        wrong += [] if said(by_text) == said(by_ids) else [body]
        compared += 1
    assert not wrong
    assert compared
    report.prove(FORWARDED, "completions" if kind is Kind.COMPLETION else "demo template", compared)

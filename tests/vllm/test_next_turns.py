"""The next turns of long conversations, whose known bytes are compared and not read: a real vLLM
answers them, sent as ids, as it answers their text."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.conftest import FORWARDED, Report
from tests.vllm.processes import Server
from tests.vllm.test_forwarding import CHAT, Body, said
from tests.vllm.test_gateway import ask, wait_for
from tests.vllm.test_kv_events import Gateway
from tokenlane.fleet_state import IdKind

TALKS, TURNS = 5, 6
# So long that bodies come in several reads and share whole parts.
SYSTEM_CHARS = 80_000
# And so short that bodies are known by what they begin with.
OPENING_CHARS = 6_000
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
WORDS = "alpha beta gamma delta def return print value list token cache route Wörter 🙂".split()


def text(rng: random.Random, chars: int) -> str:
    made = ""
    while len(made) < chars:
        made += " ".join(rng.choices(WORDS, k=100)) + "\n"
    return made[:chars]


@pytest.fixture
def front(replicas: tuple[Server, Server], model_folder: Path) -> Iterator[Gateway]:
    """A gateway that sends each prompt as ids, to the first replica."""
    made = Gateway(
        "gateway-turns", {"tiny": model_folder}, replicas[0], TOKENLANE_TOKENS_AS_TEXT_RATIO="0"
    )
    try:
        made.wait()
        wait_for(lambda: made.sample("tokenlane_id_proof", replicas[0]) == len(IdKind), 120.0)
        yield made
    finally:
        made.stop()


def hits(front: Gateway) -> float:
    name = 'tokenlane_token_cache_hits_total{cache="body"} '
    return sum(float(line[len(name) :]) for line in front.page().splitlines() if name in line)


def compare(front: Gateway, replica: Server, body: Body) -> None:
    """By ids through the gateway, and by text straight: the same answer."""
    _, _, by_text = ask(replica, CHAT, body | {"cache_salt": "text"})
    status, headers, by_ids = ask(front, CHAT, body | {"cache_salt": "ids"})
    assert (status, headers["x-tokenlane-forwarded"]) == (200, "ids")
    assert said(by_ids) == said(by_text)


def called(rng: random.Random, number: str) -> list[dict[str, Any]]:
    """One to three calls of a tool, with something said or nothing, and what they gave."""
    calls = []
    for at in range(rng.randint(1, 3)):
        arguments = {"path": f"{number}.py"} | rng.choice(({}, {"line": at}, {"all": True}))
        function = {"name": "read", "arguments": json.dumps(arguments, indent=1)}
        calls.append({"id": f"call-{number}.{at}", "type": "function", "function": function})
    said = {"role": "assistant", "content": rng.choice((None, "", "so"))}
    return [
        {**said, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": one["id"], "content": text(rng, 200)} for one in calls),
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("calls", [False, True], ids=["said", "called"])
def test_a_long_conversations_turns_are_answered_as_by_text(
    front: Gateway, replicas: tuple[Server, Server], report: Report, calls: bool
) -> None:
    rng = random.Random(5)
    for talk in range(TALKS):
        messages: list[dict[str, Any]] = [{"role": "system", "content": text(rng, SYSTEM_CHARS)}]
        for turn in range(TURNS):
            if calls and turn:
                messages += called(rng, f"{talk}.{turn}")
            else:
                messages.append({"role": "user", "content": text(rng, 200)})
            body: Body = {"messages": messages, "max_tokens": 12, "temperature": 0}
            body |= {"tools": TOOLS} if calls else {}
            body |= {"stream": True} if turn % 2 else {}
            compare(front, replicas[0], body)
            if not calls:
                messages.append({"role": "assistant", "content": f"so {turn}"})
    # All but the first of each conversation; the page tells it with a delay.
    wait_for(lambda: hits(front) >= TALKS * (TURNS - 1), 10.0)
    known = hits(front)
    report.prove(FORWARDED, f"turns of long chats{' with calls' * calls}", TALKS * TURNS)
    report.add("of these, turns whose beginning was known", f"{known:.0f}")


@pytest.mark.timeout(600)
def test_many_questions_behind_one_opening_are_answered_as_by_text(
    front: Gateway, replicas: tuple[Server, Server], report: Report
) -> None:
    """Of short bodies what they begin with is known; some come again as they were."""
    rng = random.Random(7)
    systems = [text(rng, OPENING_CHARS) for _ in range(3)]
    questions = [text(rng, rng.randint(1, 1_500)) for _ in range(12)]
    count = 0
    for question in [*questions, *questions[-3:] * 3]:
        for number, system in enumerate(systems):
            told = [{"role": "system", "content": system}, {"role": "user", "content": question}]
            body: Body = {"messages": told, "max_tokens": 12, "temperature": 0}
            body |= {"tools": TOOLS} if number else {}
            compare(front, replicas[0], body)
            count += 1
    wait_for(lambda: hits(front) >= len(systems) * (len(questions) - 4), 10.0)
    report.prove(FORWARDED, "chats behind a known opening", count)


@pytest.mark.timeout(600)
def test_questions_about_one_document_are_answered_as_by_text(
    front: Gateway, replicas: tuple[Server, Server], report: Report
) -> None:
    """In one message with the document, of which what was asked before is known."""
    rng = random.Random(9)
    documents = [text(rng, SYSTEM_CHARS) for _ in range(3)]
    questions = [text(rng, rng.randint(1, 900)) for _ in range(8)]
    for question in questions:
        for number, document in enumerate(documents):
            told: list[dict[str, Any]] = [{"role": "user", "content": f"{document}\n{question}"}]
            if number:
                told.insert(0, {"role": "system", "content": "Answer."})
            body: Body = {"messages": told, "max_tokens": 12, "temperature": 0}
            compare(front, replicas[0], body)
    wait_for(lambda: hits(front) >= len(documents) * (len(questions) - 1), 10.0)
    report.prove(
        FORWARDED, "questions about a document, in one message", len(documents) * len(questions)
    )

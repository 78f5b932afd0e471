"""What requests of other kinds cost: messages of other shapes, other dialects, clients with keys.

    python -m bench kinds [--rounds 5] [--tokenizer FOLDER] [--keys]

The gateway beside the aiohttp proxy, alternated, CPU per request of the whole process tree. Bodies
are of program text, each with something new: 16 KiB, of which 12 are one of 32 system prompts, and
390 KB, the last turns of 16 conversations. Chats have a text as content, in one part or two, a
name, what was thought, a picture, or a document in one message with the question about it;
Messages, Responses and completions say the same. Agents have 20 tools, call one in each turn, and
write their bodies as Claude Code (what is to be cached moves on from turn to turn) and Codex do.
"""

import argparse
import base64
import random
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from bench.experiments.throughput import RUNG_COUNT, Wrk, summary
from bench.loads import workload
from bench.loads.throughput_bodies import RUN_NUMBERS, Load
from bench.loads.workload import CHAT, Message, Parts
from bench.tools import machine, wrk
from bench.tools.canned import Canned
from bench.tools.demo_model import MODEL, MODEL_FOLDER
from bench.tools.processes import free_ports, need_tools, say, two_cores
from bench.tools.scrape import difference, samples
from bench.tools.statistics import Cell, ratio, table
from bench.tools.systems import aiohttp_proxy, gateway

MESSAGES, RESPONSES, COMPLETIONS = "/v1/messages", "/v1/responses", "/v1/completions"
KEY = "sk-bench"
SYSTEMS, QUESTIONS = 32, 128
SYSTEM_CHARS, QUESTION_CHARS = 12 * 1024, 4 * 1024
PICTURE_BYTES = 290_000
TOOLS = 20
PARAMETERS = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("path", "old", "new", "reason")},
    "required": ["path"],
}
# What no canned answer depends on.
PROMPT_TOKENS = 1000

Change = Callable[[Message], Message]


def parts_of(body: dict[str, Any]) -> Parts:
    """A body in two, to be sent around a number."""
    return workload.around_number(msgspec.json.encode(body | {"model": MODEL}))


def questions() -> list[list[Message]]:
    """System prompts, and questions that are new each time."""
    sizes = SYSTEM_CHARS, QUESTION_CHARS
    return [
        workload.asked_anew(workload.question(*sizes, seed, SYSTEMS, workload.code))
        for seed in range(QUESTIONS)
    ]


def conversations() -> list[list[Message]]:
    """The last turns of 16 conversations, the question of each new."""
    talks = workload.talks(workload.LONG_BYTES, workload.code)
    return [workload.asked_anew(talk) for talk in workload.last_of(talks)]


def chats(talks: list[list[Message]], change: Change) -> list[Parts]:
    """Chats, their messages changed."""
    return [parts_of({"messages": list(map(change, talk))}) for talk in talks]


def as_it_is(message: Message) -> Message:
    """A role and a text."""
    return message


def in_parts(count: int) -> Change:
    """What writes content as so many parts."""

    def change(message: Message) -> Message:
        text = message["content"]
        step = -(-len(text) // count)
        texts = [text[at : at + step] for at in range(0, len(text), step)]
        return {**message, "content": [{"type": "text", "text": one} for one in texts]}

    return change


def thinking(message: Message) -> Message:
    """An assistant's message with what was thought."""
    return message | ({"reasoning_content": "So."} if message["role"] == "assistant" else {})


def named(message: Message) -> Message:
    """A user's message with a name."""
    return message | ({"name": "bo"} if message["role"] == "user" else {})


def pictures() -> list[Parts]:
    """A question and a picture."""
    data = base64.b64encode(random.Random(1).randbytes(PICTURE_BYTES)).decode()
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    asked = {"type": "text", "text": workload.marked("What is this?")}
    return [parts_of({"messages": [{"role": "user", "content": [asked, picture]}]})]


def messages(talks: list[list[Message]]) -> list[Parts]:
    """Messages: the system prompt in a field of its own."""
    return [
        parts_of({"system": talk[0]["content"], "messages": talk[1:], "max_tokens": 16})
        for talk in talks
    ]


def all_of(talk: list[Message]) -> str:
    """All that was said, in one text."""
    return "\n".join(one["content"] for one in talk)


def asking(talks: list[list[Message]]) -> list[Parts]:
    """Chats in which all of it stands in one message, the question behind a document."""
    return [parts_of({"messages": [{"role": "user", "content": all_of(talk)}]}) for talk in talks]


def responses(talks: list[list[Message]]) -> list[Parts]:
    """Responses: likewise."""
    return [
        parts_of({"instructions": talk[0]["content"], "input": talk[1]["content"]})
        for talk in talks
    ]


def agents() -> list[list[Message]]:
    """The last turns of 16 agents, what the tool answers last new."""
    talks = workload.calling_talks(workload.LONG_BYTES)
    return [workload.asked_anew(talk) for talk in workload.last_of(talks)]


def schemas() -> list[dict[str, Any]]:
    """Tools: their names, what they are for, and what they take; about 2 KB each."""
    return [
        {"name": name, "description": workload.text(1_500, at), "parameters": PARAMETERS}
        for at, name in enumerate(["edit", *(f"tool_{number}" for number in range(1, TOOLS))])
    ]


def agent_messages(talks: list[list[Message]]) -> list[Parts]:
    """Messages of agents, in blocks; the last two say that they are to be cached."""
    return [parts_of(_agent_messages(talk)) for talk in talks]


def _agent_messages(talk: list[Message]) -> dict[str, Any]:
    told: list[Message] = []
    for one in talk[1:]:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": one["content"]}]
        if one["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": one["tool_call_id"]}
            blocks = [{**result, "content": one["content"]}]
        for call in one.get("tool_calls", ()):
            function, use = call["function"], {"type": "tool_use", "id": call["id"]}
            given = msgspec.json.decode(function["arguments"])
            blocks.append({**use, "name": function["name"], "input": given})
        told.append({"role": "user" if one["role"] == "tool" else one["role"], "content": blocks})
    cached = {"cache_control": {"type": "ephemeral"}}
    for one in told[-2:]:
        one["content"][-1] |= cached
    tools = [
        {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]}
        for one in schemas()
    ]
    system = [{"type": "text", "text": talk[0]["content"], **cached}]
    return {"messages": told, "system": system, "tools": tools, "max_tokens": 32_000}


def agent_responses(talks: list[list[Message]]) -> list[Parts]:
    """Responses of agents: an item for each call and each answer."""
    return [parts_of(_agent_responses(talk)) for talk in talks]


def _agent_responses(talk: list[Message]) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for one in talk[1:]:
        content = one["content"]
        if one["role"] == "tool":
            answer = {"type": "function_call_output", "call_id": one["tool_call_id"]}
            items.append({**answer, "output": content})
            continue
        kind = "output_text" if one["role"] == "assistant" else "input_text"
        said = [{"type": kind, "text": content}]
        items.append({"type": "message", "role": one["role"], "content": said})
        items += [
            {"type": "function_call", "call_id": call["id"], **call["function"]}
            for call in one.get("tool_calls", ())
        ]
    tools = [{"type": "function", **one, "strict": False} for one in schemas()]
    return {"instructions": talk[0]["content"], "input": items, "tools": tools, "store": False}


def completions(talks: list[list[Message]]) -> list[Parts]:
    """Completions: all that was said, in one text."""
    return [parts_of({"prompt": all_of(talk)}) for talk in talks]


KINDS: dict[str, Callable[[], tuple[str, list[Parts]]]] = {
    "chat": lambda: (CHAT, chats(questions(), as_it_is)),
    "chat, content in one part": lambda: (CHAT, chats(questions(), in_parts(1))),
    "chat, content in two parts": lambda: (CHAT, chats(questions(), in_parts(2))),
    "chat, a document": lambda: (CHAT, asking(questions())),
    "Messages": lambda: (MESSAGES, messages(questions())),
    "Responses": lambda: (RESPONSES, responses(questions())),
    "completion": lambda: (COMPLETIONS, completions(questions())),
    "390 KB, a chat": lambda: (CHAT, chats(conversations(), as_it_is)),
    "390 KB, content in two parts": lambda: (CHAT, chats(conversations(), in_parts(2))),
    "390 KB, with `reasoning_content`": lambda: (CHAT, chats(conversations(), thinking)),
    "390 KB, with names": lambda: (CHAT, chats(conversations(), named)),
    "390 KB, a document": lambda: (CHAT, asking(conversations())),
    "390 KB, a picture": lambda: (CHAT, pictures()),
    "390 KB, Messages": lambda: (MESSAGES, messages(conversations())),
    "390 KB, Messages of agents": lambda: (MESSAGES, agent_messages(agents())),
    "390 KB, Responses of agents": lambda: (RESPONSES, agent_responses(agents())),
    "390 KB, completion": lambda: (COMPLETIONS, completions(conversations())),
}


def load_of(name: str) -> Load:
    """What wrk sends of a kind, with a key, which matters where keys are asked for alone."""
    path, parts = KINDS[name]()
    tokens = [PROMPT_TOKENS] * len(parts)

    def script(turn: int) -> str:
        lua = wrk.script_of_parts(path, parts, tokens, turn * RUN_NUMBERS)
        typed = "Content-Type: application/json"
        return lua.replace(typed, rf"Authorization: Bearer {KEY}\r\n{typed}")

    return Load(name, script)


def measured(rounds: int, seconds_s: int, folder: Path, *, keys: bool) -> list[list[Cell]]:
    """A row for each kind."""
    rows: list[list[Cell]] = []
    core, load_core = cores = two_cores()
    with ExitStack() as stack:
        enter = stack.enter_context
        scratch = Path(enter(tempfile.TemporaryDirectory(prefix="bench-kinds-")))
        told = {"keys": [{"digest": sha256(KEY.encode()).hexdigest(), "tenant": "bench"}]}
        config = scratch / "tokenlane.yaml"
        config.write_bytes(msgspec.json.encode({"auth": told} if keys else {}))  # JSON is YAML
        canned = enter(Canned(free_ports(4), load_core))
        ours = enter(gateway(canned.urls, core, "--config", str(config), tokenizer=folder))
        plain, runs = enter(aiohttp_proxy(canned.urls, core)), Wrk(scratch, cores)
        assert ours.admin_port is not None
        for name in KINDS:
            say(f"kinds, {name}")
            before = samples(ours.admin_port)
            done = runs.rounds(load_of(name), [ours, plain], rounds, seconds_s)
            rungs = difference(before, samples(ours.admin_port), RUNG_COUNT, "rung")
            own, other = summary(ours.name, done), summary(plain.name, done)
            costs = own["cpu_us"], other["cpu_us"]
            rung = max(rungs, key=lambda one: rungs[one], default="none")
            share = rungs.get(rung, 0.0) / max(1.0, sum(rungs.values()))
            mostly = f"{rung} {share:.0%}"
            rows.append([name, *costs, ratio(costs[1], costs[0]), mostly, own["errors"]])
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench kinds", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2, help="of a round")
    parser.add_argument("--tokenizer", type=Path, default=MODEL_FOLDER, metavar="FOLDER")
    parser.add_argument("--keys", action="store_true", help="clients have keys")
    options = parser.parse_args()
    need_tools("nginx", "wrk", "taskset")
    rows = measured(options.rounds, options.seconds, options.tokenizer, keys=options.keys)
    print(machine.describe(machine.facts()))
    header = ["requests", "CPU µs", "aiohttp", "aiohttp / ours", "mostly by", "errors"]
    print(table(header, rows))


if __name__ == "__main__":
    main()

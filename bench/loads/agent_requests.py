"""The tasks of agents as requests: chats in text, as long as they are in tokens.

Invariants:
- What two prompts share in blocks they share in text, to the letter; everything else is different.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from bench.loads import workload
from bench.loads.agent_tasks import BLOCK_TOKENS, COMMON_TOKENS, OUTPUT_TOKENS, Prompt, Task
from bench.loads.workload import CHAT

# A block's text has BLOCK_TOKENS tokens of the demo's vocabulary, in the mean.
BLOCK_CHARS = 56


class Call(NamedTuple):
    """One request. name: its x-request-id. shared: the text that siblings share, empty where it is
    no sub-agent's first. data: the whole of it as sent."""

    name: str
    parent: int
    shared: str
    data: bytes


class Work(NamedTuple):
    """A task as requests."""

    first: Call
    children: list[list[Call]]
    second: Call
    think_s: float


@lru_cache(maxsize=200_000)
def block_text(number: int, seed: int) -> str:
    """Text of about BLOCK_TOKENS tokens."""
    return workload.varied(BLOCK_CHARS, (seed << 32) + number) + " "


def text(blocks: Prompt, seed: int) -> str:
    """Of blocks in a row."""
    return "".join(block_text(number, seed) for number in blocks)


def messages(prompt: Prompt, cuts: Sequence[int], seed: int) -> list[tuple[str, str]]:
    """A chat: a system prompt up to the first cut (blocks), then users and assistants in turn,
    the last of them a user."""
    bounds = [0, *cuts, len(prompt)]
    parts = [text(prompt[a:b], seed) for a, b in pairwise(bounds)]
    roles = ["system", "user", *["assistant", "user"] * len(parts)]
    return list(zip(roles, parts, strict=False))


class Maker:
    """Requests of tasks. seed: blocks of one number have one text under each. header: whether they
    name their parent."""

    def __init__(self, seed: int, *, header: bool) -> None:
        self._seed = seed
        self._header = header
        self._names = 0

    def work(self, task: Task) -> Work:
        """All requests of a task."""
        own = [COMMON_TOKENS // BLOCK_TOKENS]
        answer = OUTPUT_TOKENS // BLOCK_TOKENS
        brief = task.shared_tokens // BLOCK_TOKENS
        children = []
        for turns in task.children:
            cuts = [brief]
            calls = [self._call(task, turns[0], cuts, turns[0][:brief])]
            for before, turn in pairwise(turns):
                cuts += [len(before), len(before) + answer]
                calls.append(self._call(task, turn, cuts))
            children.append(calls)
        whole = len(task.first)
        return Work(
            self._call(task, task.first, own),
            children,
            self._call(task, task.second, [*own, whole, whole + answer]),
            task.think_s,
        )

    def _call(
        self, task: Task, prompt: Prompt, cuts: Sequence[int], shared: Prompt | None = None
    ) -> Call:
        self._names += 1
        name = f"agent-{self._seed}-{self._names}"
        body = workload.chat(messages(prompt, cuts, self._seed), max_tokens=OUTPUT_TOKENS)
        parent = f"X-Correlation-ID: task-{task.parent}\r\n" if self._header else ""
        head = f"POST {CHAT} HTTP/1.1\r\nX-Request-Id: {name}\r\n{parent}".encode()
        _, rest = workload.request(CHAT, body).split(b"\r\n", 1)
        return Call(name, task.parent, text(shared or [], self._seed), head + rest)

"""Tasks of agents, as prompts of block numbers: a parent's turn, its sub-agents, its next turn.

Sub-agents of one task share most of a prompt that nobody has computed yet, and take one to three
turns each.
"""

from random import Random
from typing import NamedTuple

BLOCK_TOKENS = 16
COMMON_TOKENS, OWN_TOKENS, CHILD_TOKENS = 2048, 6144, 10_240
SHARED = 0.8, 0.9
OUTPUT_TOKENS, RESULT_TOKENS = 100, 150
TURNS, THINK_S = 3, 3.0

Prompt = list[int]


class Task(NamedTuple):
    """What one parent asks: prompts as numbers of blocks. children: the turns of each."""

    parent: int
    first: Prompt
    children: list[list[Prompt]]
    second: Prompt
    shared_tokens: int
    think_s: float


def tasks(users: int, agents: int, count: int, seed: int) -> list[list[Task]]:
    """By user."""
    random, fresh = Random(seed), iter(range(1, 2**31))

    def new(tokens: float) -> Prompt:
        return [next(fresh) for _ in range(int(tokens) // BLOCK_TOKENS)]

    def turns(brief: Prompt) -> list[Prompt]:
        made = [[*brief, *new(CHILD_TOKENS - len(brief) * BLOCK_TOKENS)]]
        for _ in range(random.randrange(TURNS)):
            made.append([*made[-1], *new(OUTPUT_TOKENS + RESULT_TOKENS)])
        return made

    common = new(COMMON_TOKENS)

    def task() -> Task:
        first = [*common, *new(OWN_TOKENS)]
        brief = new(CHILD_TOKENS * random.uniform(*SHARED))
        children = [turns(brief) for _ in range(agents)]
        second = [*first, *new(OUTPUT_TOKENS + agents * RESULT_TOKENS)]
        shared_tokens = len(brief) * BLOCK_TOKENS
        return Task(next(fresh), first, children, second, shared_tokens, random.uniform(0, THINK_S))

    return [[task() for _ in range(count)] for _ in range(users)]

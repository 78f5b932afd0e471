"""Agent conversations for the cache experiments: a made trace, or a real one's text as messages.

Invariants:
- The made trace follows from its seed, and what it repeats is said in its constants: its hit rates
  say what the caches do with such a trace, not what users send. A real one says that (--trace).
- A text trace has prompts, no roles. Each session's prompt grows; what it grows by is the user's
  (or a tool's) text, and between two of those stands the answer. What the first prompts of all
  sessions end with is the system prompt.
"""

import itertools
import random
from collections.abc import Iterable
from typing import NamedTuple

from bench.loads import text_trace, workload
from bench.tools.processes import BenchError

SESSIONS, TURNS = 24, 10
SYSTEM_PROMPTS, SYSTEM_CHARS = 4, 4_000
# Some of what tools say is always the same: "no output", "file written".
STOCK_REPLIES, STOCK_SHARE = 6, 0.2
# Shorter endings that all prompts share are chance.
LEAST_SHARED_CHARS = 200

Message = tuple[str, str]


class Asked(NamedTuple):
    """One request: the whole conversation so far, its last two messages new."""

    session: str
    messages: list[Message]

    @property
    def body(self) -> bytes:
        """As a chat completion."""
        return workload.chat(self.messages)


def made(seed: int = 0, sessions: int = SESSIONS) -> list[Asked]:
    """Sessions of a few kinds of agent, interleaved at random."""
    chooser = random.Random(seed)
    systems = [workload.text(SYSTEM_CHARS, 100 + n) for n in range(SYSTEM_PROMPTS)]
    stock = [workload.text(60, 200 + n) for n in range(STOCK_REPLIES)]
    talks: list[list[Message]] = [[("system", chooser.choice(systems))] for _ in range(sessions)]
    order = [session for session in range(sessions) for _ in range(TURNS)]
    chooser.shuffle(order)
    asked = []
    for number, session in enumerate(order):
        talk = talks[session]
        began = len(talk) == 1
        if not began:
            talk.append(("assistant", workload.text(chooser.randint(80, 400), 1000 + number)))
        if chooser.random() < STOCK_SHARE:
            talk.append(("user", chooser.choice(stock)))
        else:
            talk.append(("user", workload.text(chooser.randint(100, 2000), 5000 + number)))
        asked.append(Asked(str(session), list(talk)))
    return asked


def from_rows(rows: Iterable[text_trace.Row]) -> list[Asked]:
    """A text trace as conversations. Raises BenchError where no prompt grows."""
    ordered = list(rows)
    first: dict[str, str] = {}
    for row in ordered:
        first.setdefault(row.session_id, row.input)
    system = _shared_ending(list(first.values()))
    talks: dict[str, list[Message]] = {}
    last: dict[str, text_trace.Row] = {}
    asked = []
    for row in ordered:
        before = last.get(row.session_id)
        if before is None or not row.input.startswith(before.input):
            own = row.input.removesuffix(system) if system else row.input
            talks[row.session_id] = [*([("system", system)] if system else []), ("user", own)]
        else:
            new = row.input[len(before.input) :]
            talks[row.session_id] += [("assistant", before.output), ("user", new)]
        last[row.session_id] = row
        asked.append(Asked(row.session_id, list(talks[row.session_id])))
    if all(len(one.messages) <= 2 for one in asked):
        raise BenchError("the trace holds no conversation: no prompt begins as an earlier one did")
    return asked


def _shared_ending(texts: list[str]) -> str:
    if len(texts) < 2:
        return ""
    # What all share, the first and the last in the order of their reversed texts share.
    backwards = sorted(text[::-1] for text in texts)
    first, last = backwards[0], backwards[-1]
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last)))
    return first[:same][::-1] if same >= LEAST_SHARED_CHARS else ""

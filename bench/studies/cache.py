"""What of an agent's prompts is known already: role tags, system prompts, user text.

    python -m bench cache [--trace FILE] [--smoke | --full]

The trace's conversations go through the gateway's own segment cache, message by message, and then
whole through its own ladder, in the order of the trace. FILE is a text trace: a JSON object with
`timestamp` (us), `session_id`, `input` and `output` a line; without it a small made trace is used,
whose hit rates are of its making. New text counts only what a request added to its conversation;
with the history, every earlier turn is looked up again, as a gateway without a prefix cache does.
"""

import asyncio
from collections import Counter
from typing import Any

import uvloop

from bench.loads import text_trace
from bench.loads.conversations import Asked, from_rows, made
from bench.tools import machine
from bench.tools.command_line import Options, main
from bench.tools.demo_model import MODEL_FOLDER
from bench.tools.finding import Beside, Finding, Shape, Table, bars
from bench.tools.processes import say
from bench.tools.statistics import Cell
from tokenlane.config.settings import TokenSettings
from tokenlane.protocols.bodies import ChatBody, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.caches.budgets import CacheBudgets
from tokenlane.tokens.caches.segments import SegmentCache
from tokenlane.tokens.model_tokenizers import ModelTokenizers
from tokenlane.tokens.service import TokenService
from tokenlane.tokens.tokenizer import Tokenizer

TAGS, SYSTEM, NEW, HISTORY = "role tags", "system prompts", "user text, new", "user text, all"
MADE = "made here"
PUBLISHED = {TAGS: "95 %+", SYSTEM: "80-90 %", NEW: "10-30 %"}


class Lookups:
    """Hits and lookups by kind of text, in one cache of the product's size."""

    def __init__(self) -> None:
        self._cache = SegmentCache(CacheBudgets.of(TokenSettings()).segment)
        self.asked: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self.asked_chars = self.hit_chars = 0

    def request(self, asked: Asked) -> None:
        """All of one request's stretches, looked up and then kept."""
        old = len(asked.messages) - 2
        for number, (role, content) in enumerate(asked.messages):
            self._look(f"<|im_start|>{role}\n", TAGS)
            if role == "system":
                self._look(content, SYSTEM)
            elif role == "user":
                self._look(content, HISTORY, *([NEW] if number >= old else []))
            else:
                self._look(content, "answers")

    def _look(self, text: str, *kinds: str) -> None:
        known = self._cache.get([text])[0] is not None
        for kind in kinds:
            self.asked[kind] += 1
            self.hits[kind] += known
        self.asked_chars += len(text)
        self.hit_chars += len(text) * known
        if not known:
            # The ids' values do not matter here, their room does: about four characters a token.
            self._cache.put([text], [bytes(4 * (len(text) // 4 + 1))])

    def rate(self, kind: str) -> float | None:
        """Hits over lookups."""
        return self.hits[kind] / self.asked[kind] if self.asked[kind] else None

    @property
    def rate_of_text(self) -> float:
        """Of all characters looked up: a role tag must not count as much as a page of text."""
        return self.hit_chars / max(1, self.asked_chars)


async def through_the_ladder(conversations: list[Asked]) -> list[list[Cell]]:
    """The product's own caches after the whole trace, a row each."""
    service = TokenService(
        TokenSettings(), ModelTokenizers({"demo": Tokenizer.load("demo", MODEL_FOLDER)}), 16
    )
    try:
        for one in conversations:
            request = inspect(Kind.CHAT, one.body)
            assert isinstance(request, ChatBody)
            await service.prompt("demo", request)
            await asyncio.sleep(0)
        return [
            [name, counts.hits, counts.misses, counts.hits / max(1, counts.hits + counts.misses),
             counts.entries, counts.size_bytes]
            for name, counts in service.budgets.counts().items() if name != "listed"
        ]  # fmt: skip
    finally:
        service.close()


def run(options: Options) -> Finding:
    """The whole trace, twice."""
    facts = machine.facts()
    if options.trace is None:
        conversations, source = made(sessions=options.pick(6, 24, 200)), MADE
    else:
        conversations, source = (
            from_rows(text_trace.rows(options.trace)),
            options.trace.name,
        )
        conversations = conversations[: options.pick(60, 1000, None)]
    say(f"  cache: {len(conversations)} requests, {source}")
    lookups = Lookups()
    for one in conversations:
        lookups.request(one)
    ladder = uvloop.run(through_the_ladder(conversations))
    return finding(facts, source, conversations, lookups, ladder)


def finding(
    facts: dict[str, Any],
    source: str,
    conversations: list[Asked],
    lookups: Lookups,
    ladder: list[list[Cell]],
) -> Finding:
    """The tables and whether the kinds stand in the published order."""
    kinds = [TAGS, SYSTEM, NEW, HISTORY, "answers"]
    rates = {kind: lookups.rate(kind) for kind in kinds}
    tags, system, new = rates[TAGS], rates[SYSTEM], rates[NEW]
    ordered = None
    if tags is not None and system is not None and new is not None:
        ordered = tags >= system - 0.02 and system > new
    rows: list[list[Cell]] = [
        [kind, lookups.asked[kind], lookups.hits[kind], rates[kind]] for kind in kinds
    ]
    sessions = len({one.session for one in conversations})
    return Finding(
        name="cache",
        title=f"what is known already in {len(conversations)} requests of {sessions} agent "
        f"sessions ({source})",
        machine=facts,
        settings={"trace": source, "requests": len(conversations), "sessions": sessions},
        tables=[
            Table("stretches of text", ["kind", "lookups", "hits", "hit rate"], rows),
            Table(
                "the gateway's own caches, the whole trace through its ladder",
                ["cache", "hits", "misses", "hit rate", "entries", "bytes"],
                ladder,
            ),
        ],
        plots=[bars("hit rate by kind of text", "share", rates)],
        published=[
            Beside(f"hit rate of {kind}", published, _percent(rates[kind]))
            for kind, published in PUBLISHED.items()
        ],
        shapes=[
            Shape(
                "role tags hit most, system prompts next, new user text least",
                ordered,
                ", ".join(f"{kind} {_percent(rates[kind])}" for kind in PUBLISHED),
            )
        ],
        remarks=[
            f"of all the text of the prompts {lookups.rate_of_text:.0%} was known",
            *(
                ["a made trace: its rates are of its making; give a real one with --trace"]
                if source == MADE
                else []
            ),
        ],
        numbers={"hit_rate": lookups.rate_of_text},
    )


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"


if __name__ == "__main__":
    main(run, __doc__, "cache")

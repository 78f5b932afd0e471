"""A gateway whose caches are warm and one that has none do the same: to the client, the replica,
the log, the counters, the index and the leases."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.admission.test_auth import ALICE, AUTH, BOB, bearer
from tests.raw import (
    MESSAGES,
    RESPONSES,
    Answer,
    Asked,
    Upstream,
    answering,
    ok,
    post,
    until,
)
from tests.support import Bench, demo_tokenizer, gateway, replicas
from tests.tokens import test_dialect_turns as dialect_turns
from tests.tokens.test_agent_turns import talk
from tests.tokens.test_next_turn import PAD, damaged, system, turns, written
from tokenlane.config.settings import LogSettings, ModelSettings, Settings, TokenSettings
from tokenlane.protocols.bodies import Kind
from tokenlane.telemetry.log.access_log import AccessLog
from tokenlane.tokens.caches.lru import CacheCounts

CHAT = "/v1/chat/completions"
# What takes time, where ids came from, and what tells two requests apart.
OF_ITS_OWN = {"time", "request_id", "duration_s", "stages_s", "rung", "logged", "ttft_s"}
HEADERS_OF_ITS_OWN = {"date", "request-id", "x-request-id", "x-tokenlane-replica"}

WORDS = ["hello", "Wörter", "<|im_end|>", "", "a" * 600]


KINDS = ("long", "short", "opened", "agent", "document")
PATHS = {Kind.CHAT: CHAT, Kind.MESSAGES: MESSAGES, Kind.RESPONSES: RESPONSES}


def talk_of(what: str, count: int, word: str) -> list[dict[str, Any]]:
    """A conversation; one whose bodies are kept, one that is rendered by its shape, one that is
    known by its system prompt, an agent's, or a question behind a document, in one message."""
    if what == "agent":
        arguments = json.dumps({"path": word})
        return talk([("said", word, f"{word}!", arguments)] * count)[-1]
    if what == "opened":
        return [system(), {"role": "user", "content": f"{word} {count}"}]
    if what == "document":
        asked = {"role": "user", "content": f"{PAD}{word} {count}"}
        return [{"role": "system", "content": "Answer."}, asked]
    said = turns(count, word)
    return list(said if what == "long" else [*said[1:], {"role": "user", "content": word}])


def body_of(kind: Kind, said: list[dict[str, Any]], style: int, fields: dict[str, Any]) -> bytes:
    """A conversation in a dialect."""
    if kind is Kind.CHAT:
        return written(style, fields)(said)
    return dialect_turns.written(kind, said, style, **{**fields, "tools": []})


stories = st.lists(
    st.tuples(
        st.sampled_from(sorted(PATHS)),
        # A conversation.
        st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.sampled_from(WORDS)),
        st.integers(0, 31),  # how it is written
        st.sampled_from([0] * 5 + list(range(1, 9))),  # and damaged
        st.integers(0, 2**20),  # where that, and where it is cut
        st.fixed_dictionaries(
            {},
            optional={
                "stream": st.just(False),
                "cache_salt": st.sampled_from(["a", "b"]),
                "tools": st.just([{"type": "function", "function": {"name": "f"}}]),
                "truncate_prompt_tokens": st.just(4),
            },
        ),
    ),
    min_size=2,
    max_size=6,
)


class Watched:
    """A gateway, and all that can be seen of it. kept_bytes: of what its caches may keep. how: what
    it is set up with."""

    def __init__(self, folder: Path, kept_bytes: int, how: Settings) -> None:
        self._path = folder / f"{kept_bytes}.jsonl"
        log = LogSettings(
            access=str(self._path), sample_ratio=1.0, prefix_block_tokens=16, format="json"
        )
        self._access = AccessLog(log)
        tokens = TokenSettings(cache_limit_bytes=kept_bytes)
        self._settings = msgspec.structs.replace(how, log=log, tokens=tokens)
        self._model = "m" if how.models == ModelSettings() else "real"

    async def enter(self, stack: AsyncExitStack) -> None:
        self._upstream = await stack.enter_async_context(Upstream(answering(ok())))
        self._bench: Bench = await stack.enter_async_context(
            gateway(
                settings=self._settings,
                tokenizer=demo_tokenizer(),
                state=replicas([self._upstream.url], models=(self._model,), started_s=1.0),
                access=self._access,
                model=self._model,
            )
        )
        self._client = await self._bench.client()

    async def ask(
        self, kind: Kind, raw: bytes, cut: int, key: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """The answer to a body that comes in two parts."""
        request = post(PATHS[kind], raw, bearer(key))
        at = len(request) - cut % (len(raw) + 1)
        await self._client.send(request[:at])
        await asyncio.sleep(0)
        await self._client.send(request[at:])
        answer: Answer = await self._client.answer()
        headers = {
            name: value for name, value in answer.headers.items() if name not in HEADERS_OF_ITS_OWN
        }
        return answer.status, headers, _without_id(answer.body)

    def cache_counts(self) -> dict[str, CacheCounts]:
        return self._bench.tokens.budgets.counts()

    async def seen(self) -> dict[str, Any]:
        """By the replica, the log, the counters, the index and the leases."""
        await until(lambda: self._bench.idle)
        self._access.close()
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        counters = {
            (family.name, labels): values[0]
            for family, labels, values in self._bench._metrics.samples()
            if family.kind == "counter" and "cache" not in labels and "seconds" not in family.name
        }
        index = self._bench.gateway.router.index
        return {
            "asked": [(one.line, _told(one), one.body) for one in self._upstream.asked],
            "lines": [
                {name: value for name, value in line.items() if name not in OF_ITS_OWN}
                | {"replica": bool(line.get("replica"))}
                for line in lines
            ],
            "counters": sorted(value for value in counters.values() if value),
            "index": (len(index), index.held_blocks(0)),
        }


def _without_id(body: bytes) -> bytes:
    said = json.loads(body)
    if "error" in said:
        said["error"].pop("request_id", None)
        said.pop("request_id", None)
    return msgspec.json.encode(said)


def _told(one: Asked) -> list[tuple[bytes, bytes]]:
    return [pair for pair in one.headers if pair[0] not in {b"x-request-id", b"host"}]


@pytest.mark.parametrize(
    "how",
    [
        Settings(),
        Settings(auth=AUTH),
        Settings(models=ModelSettings(aliases={"m": "real"})),
        Settings(auth=AUTH, models=ModelSettings(splits={"m": {"real": 1.0}})),
    ],
    ids=["open", "with keys", "with an alias", "with keys and a split"],
)
@pytest.mark.timeout(240)
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=8)
@given(story=stories)
def test_nobody_can_tell_that_a_prompt_was_known(
    how: Settings, story: list[tuple[Any, ...]]
) -> None:
    async def told() -> None:
        with TemporaryDirectory() as folder:
            warm, cold = [Watched(Path(folder), size, how) for size in (64 << 20, 0)]
            async with AsyncExitStack() as stack:
                for one in (warm, cold):
                    await one.enter(stack)
                # A shape, an opening and a body are known from their second sight on.
                asked = [
                    (kind, body_of(kind, talk_of(what, count, word), 1, {}))
                    for word in ("one", "two", "three")
                    for what in KINDS
                    for count in range(4)
                    for kind in PATHS
                ]
                for kind, drawn, style, harm, at, fields in story:
                    said = talk_of(*drawn)
                    raw, last = body_of(kind, said, style, fields), json.dumps(said[-1:]).encode()
                    body = damaged(raw, harm, at, last) if harm != 4 else raw
                    asked += [(kind, body), (kind, body), (kind, raw)]
                for number, (kind, body) in enumerate(asked):
                    cut, key = number * 7919, BOB if number % 5 == 4 else ALICE
                    told, wanted = [await one.ask(kind, body, cut, key) for one in (warm, cold)]
                    assert told == wanted
                hits = {name: one.hits for name, one in warm.cache_counts().items()}
                assert min(hits["body"], hits["shape"]) > 0, hits
                seen, others = await warm.seen(), await cold.seen()
                for part, value in others.items():
                    assert seen[part] == value, part

    asyncio.run(told())

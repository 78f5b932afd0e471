"""The ladder climbed with the demo model: each rung, its bounds, and equal ids from all of them."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.raw import until
from tests.support import demo_tokenizer, slow_tokenizer
from tests.tokens.models import folder_with
from tests.tokens.rungs.test_threads import Bad, Job
from tokenlane.config.settings import TokenSettings
from tokenlane.errors import RequestError
from tokenlane.prompt import Rung
from tokenlane.protocols.bodies import ChatBody, CompletionBody, Kind, OtherBody
from tokenlane.protocols.inspection import MESSAGES_FIELDS, inspect
from tokenlane.tokens import keys
from tokenlane.tokens.job import Tokenized
from tokenlane.tokens.model_tokenizers import ModelTokenizers
from tokenlane.tokens.service import Outcome, TokenService
from tokenlane.tokens.tokenizer import Tokenizer

LONG = "a long story of many words, told without an end. " * 4_000
HUGE = LONG * 5


def body_of(value: dict[str, Any]) -> ChatBody | CompletionBody:
    kind = Kind.CHAT if "messages" in value else Kind.COMPLETION
    body = inspect(kind, json.dumps(value).encode())
    assert isinstance(body, ChatBody | CompletionBody)
    return body


def text(prompt: Any, **fields: Any) -> CompletionBody:
    body = body_of({"prompt": prompt, **fields})
    assert isinstance(body, CompletionBody)
    return body


@asynccontextmanager
async def service(**fields: Any) -> AsyncIterator[TokenService]:
    made = TokenService(TokenSettings(**fields), ModelTokenizers({"demo": slow_tokenizer()}), 16)
    try:
        yield made
        await until(lambda: made.threads.queued_jobs == 0)
    finally:
        made.close()


NO_SHORT: dict[str, Any] = {"thread_hop_s": 0.0}
# The queue is full as soon as one job is in it.
ONE_JOB: dict[str, Any] = {**NO_SHORT, "queue_limit_jobs": 1, "threads": 2}


@asynccontextmanager
async def with_a_full_queue(**fields: Any) -> AsyncIterator[TokenService]:
    """A service whose threads have all they take, with a huge prompt that is really worked on."""
    async with service(**{**ONE_JOB, **fields}) as tokens:
        waiting = asyncio.get_running_loop().create_task(tokens.prompt("demo", text(LONG)))
        await asyncio.sleep(0)
        assert tokens.threads.queued_jobs == 1
        yield tokens
        assert (await waiting).rung is Rung.THREADS


async def test_short() -> None:
    async with service(thread_hop_s=10.0) as tokens:
        outcome = await tokens.prompt("demo", text("hello"))
        assert (outcome.rung, outcome.queue_s) == (Rung.SHORT, 0.0)
        assert tokens.threads.queued_jobs == 0


async def test_a_short_message_with_many_tools_is_no_short_prompt() -> None:
    """A template shows tools as JSON: their bytes cost a dozen times those of a text."""
    hi: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    tool = {"type": "function", "function": {"name": "f", "description": "d" * 900}}
    async with service(thread_hop_s=0.01) as tokens:
        few = await tokens.prompt("demo", body_of({**hi, "tools": [tool] * 10}))
        many = await tokens.prompt("demo", body_of({**hi, "tools": [tool] * 900}))
        # As fast as messages are at best, and the same in their bytes would be no work at all.
        for _ in range(200):
            tokens.models["demo"].speed.learn_render(1_000_000, 0.001)
        still = await tokens.prompt("demo", body_of({**hi, "tools": [tool] * 1_000}))
    assert (few.rung, many.rung, still.rung) == (Rung.SHORT, Rung.THREADS, Rung.THREADS)


async def test_a_tokenizer_may_serve_another_name() -> None:
    made = TokenService(
        TokenSettings(thread_hop_s=10.0), ModelTokenizers({"renamed": demo_tokenizer()}), 16
    )
    outcome = await made.prompt("renamed", text("hello"))
    made.close()
    assert outcome.rung is Rung.SHORT
    assert outcome.prompt is not None


async def needed(tokens: TokenService, body: ChatBody | CompletionBody) -> Outcome:
    key = tokens.known("demo", body)
    assert isinstance(key, bytes)
    return await tokens.make("demo", body, key, limit_tokens=1)


async def test_what_is_needed_waits_for_room() -> None:
    async with with_a_full_queue(stall_budget_s=0.0) as tokens:  # nothing is local
        assert (await tokens.prompt("demo", text("hello"))).reason == "overload"
        first, second = await asyncio.gather(
            needed(tokens, text("hello one")), needed(tokens, text("hello two"))
        )
        assert first.rung is second.rung is Rung.THREADS
        assert first.queue_s > 0.0


async def test_what_is_needed_is_refused_after_its_time() -> None:
    async with with_a_full_queue(stall_budget_s=0.0, needed_wait_s=0.001) as tokens:
        with pytest.raises(RequestError, match="no time to count") as refused:
            await needed(tokens, text("hello"))
        assert (refused.value.status, refused.value.retry_after_s) == (503, 1)


class Busy(Job):
    """One of many slices: it begins when it is let go on, and ends when it is let end."""

    def __init__(self) -> None:
        super().__init__(held=True)
        self.end = threading.Event()

    def advance(self, slice_s: float) -> Tokenized | None:
        made = super().advance(slice_s)
        return made if self.end.wait(0.001) else None


@pytest.mark.parametrize("left", [Job(1000), Bad(1000)], ids=["dropped", "failed"])
async def test_a_job_without_a_result_leaves_its_room_to_others(left: Job) -> None:
    full: dict[str, Any] = {"queue_limit_bytes": 1000, "queue_wait_limit_s": 1000.0, "threads": 2}
    async with service(**NO_SHORT, stall_budget_s=0.0, needed_wait_s=5.0, **full) as tokens:
        busy = Busy()
        long = tokens.threads.submit(busy, 0.1, short=False)
        await until(busy.begun.is_set)
        future = tokens.threads.submit(left, 0.1, short=False)
        if not isinstance(left, Bad):
            future.cancel()
        waiting = asyncio.get_running_loop().create_task(needed(tokens, text("hello")))
        await until(lambda: len(tokens._room.waiting) == 1)
        busy.go_on.set()
        assert (await waiting).rung is Rung.THREADS
        assert not long.done()
        busy.end.set()
        await asyncio.gather(long, future, return_exceptions=True)


async def test_threads() -> None:
    async with service(**NO_SHORT) as tokens:
        outcome = await tokens.prompt("demo", text("hello"))
        assert outcome.rung is Rung.THREADS
        assert outcome.run_s > 0.0


async def test_cache() -> None:
    async with service() as tokens:
        first = await tokens.prompt("demo", text("hello"))
        again = await tokens.prompt("demo", text("hello", max_tokens=7, stream=True))
        assert again.rung is Rung.CACHE
        assert again.prompt is first.prompt
        assert (tokens.cache.hits, tokens.cache.misses) == (1, 1)


@pytest.mark.parametrize(("words", "times"), [(1, 2), (1_000, 1)])
async def test_a_cheap_prompt_is_kept_the_second_time_any_other_the_first(
    words: int, times: int
) -> None:
    async with service(thread_hop_s=10.0) as tokens:
        for number in range(3):  # its shape is learnt
            said = {"role": "user", "content": f"hello {number}"}
            await tokens.prompt("demo", body_of({"messages": [said]}))
        body = body_of({"messages": [{"role": "user", "content": "word " * words}]})
        made = 0
        while isinstance(key := tokens.known("demo", body), bytes):
            outcome = tokens.plain("demo", body, key)
            assert outcome is not None
            assert outcome.rung is Rung.SHORT
            made += 1
        assert made == times
        assert key.rung is Rung.CACHE


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2], [3]]])
async def test_token_input(prompt: Any) -> None:
    async with service() as tokens:
        outcome = await tokens.prompt("demo", text(prompt))
        assert outcome.rung is Rung.TOKEN_INPUT
        assert outcome.prompt is not None
        assert outcome.prompt.tokens == 3
    async with service() as tokens:
        for words in ("1, 2", ["1", "2"], " [1]"):
            assert (await tokens.prompt("demo", text(words))).rung is not Rung.TOKEN_INPUT


def in_pieces() -> str:
    """A prompt that takes several slices: no piece is known from another."""
    return "<|im_end|>".join(f"some words of piece {number}" for number in range(600))


async def test_local() -> None:
    async with with_a_full_queue(stall_budget_s=0.5) as tokens:
        outcome = await tokens.prompt("demo", text("hello there"))
        assert outcome.rung is Rung.LOCAL
        assert outcome.prompt is not None
        assert outcome.prompt.sequences == demo_tokenizer().completion_ids(text("hello there"))


async def test_local_lets_others_run_between_its_pieces() -> None:
    """A permit around one synchronous call would bound nothing."""
    prompt = in_pieces()
    async with with_a_full_queue(stall_budget_s=0.0005) as tokens:
        waiting = asyncio.get_running_loop().create_task(tokens.prompt("demo", text(prompt)))
        turns = 0
        while not waiting.done():
            await asyncio.sleep(0)
            turns += 1
        outcome = waiting.result()
        assert (outcome.rung, outcome.reason) == (Rung.LOCAL, "")
        assert turns > 5


async def test_local_holds_its_permit_across_the_job() -> None:
    prompt = in_pieces()
    async with with_a_full_queue(stall_budget_s=0.0005) as tokens:
        waiting = asyncio.get_running_loop().create_task(tokens.prompt("demo", text(prompt)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert tokens._permit.locked()
        other = await tokens.prompt("demo", text("hello"))
        assert (other.rung, other.reason) == (Rung.BAIL, "overload")
        assert (await waiting).rung is Rung.LOCAL


async def test_local_makes_others_wait_where_told_to() -> None:
    prompt = in_pieces()
    async with with_a_full_queue(stall_budget_s=0.0005, fallback="wait") as tokens:
        long, short = await asyncio.gather(
            tokens.prompt("demo", text(prompt)), tokens.prompt("demo", text("hello"))
        )
        assert (long.rung, short.rung) == (Rung.LOCAL, Rung.LOCAL)
        assert short.queue_s > 0.0


async def test_a_cancelled_local_job_gives_its_permit_back() -> None:
    prompt = in_pieces()
    async with with_a_full_queue(stall_budget_s=0.0005) as tokens:
        waiting = asyncio.get_running_loop().create_task(tokens.prompt("demo", text(prompt)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not tokens._permit.locked()


BAILS = [
    ("other", text("hello"), "no-tokenizer"),
    ("demo", text("a", suffix="b"), "suffix"),
    ("demo", text(None), "field-shape"),
    ("demo", text("a", truncate_prompt_tokens=-1), "truncation"),
]


@pytest.mark.parametrize(("model", "body", "reason"), BAILS, ids=[case[2] for case in BAILS])
async def test_bail_says_why(model: str, body: CompletionBody, reason: str) -> None:
    async with service() as tokens:
        outcome = await tokens.prompt(model, body)
        assert (outcome.prompt, outcome.rung, outcome.reason) == (None, Rung.BAIL, reason)
        assert len(tokens.cache) == 0


@pytest.mark.parametrize(
    ("kind", "part", "found"),
    [
        (Kind.CHAT, {"type": "image_url", "image_url": {"url": "x" * 40_000}}, True),
        (Kind.CHAT, {"type": "text", "text": '"type": "image_url" ' * 2_000}, False),
        (Kind.CHAT, {"image_url": {"url": "x" * 40_000}, "type": "image_url"}, False),
        (Kind.RESPONSES, {"type": "input_image", "image_url": "x" * 40_000}, True),
        (Kind.RESPONSES, {"type": "input_text", "text": "x" * 40_000}, False),
        (Kind.MESSAGES, {"type": "image", "source": "x" * 40_000}, False),
    ],
)
async def test_a_picture_is_found_without_a_job(
    kind: Kind, part: dict[str, Any], found: bool
) -> None:
    said = {"role": "user", "content": [part]}
    field = {
        MESSAGES_FIELDS[kind]: [{"role": "user", "content": "hi"}, said, said],
        "model": "demo",
    }
    for indent in (None, 1):
        body = inspect(kind, json.dumps(field, indent=indent).encode())
        assert not isinstance(body, OtherBody)
        assert keys.unreadable(body) == ("multimodal" if found else "")
        async with service() as tokens:
            outcome = await tokens.prompt("demo", body)
            assert (outcome.prompt is None) == ("image" in part["type"])
            assert outcome.reason == ("multimodal" if outcome.prompt is None else "")


async def test_a_picture_in_a_long_text_is_found_by_the_job() -> None:
    parts = [
        {"type": "text", "text": "some words " * 4_000},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]
    field = {"model": "demo", "messages": [{"role": "user", "content": parts}]}
    body = inspect(Kind.CHAT, json.dumps(field).encode())
    assert not isinstance(body, OtherBody)
    assert keys.unreadable(body) == ""
    async with service() as tokens:
        outcome = await tokens.prompt("demo", body)
        assert (outcome.prompt, outcome.reason) == (None, "multimodal")


async def test_a_piece_over_the_budget_bails() -> None:
    async with with_a_full_queue(stall_budget_s=0.001) as tokens:
        outcome = await tokens.prompt("demo", text("word " * 5000))
        assert (outcome.rung, outcome.reason) == (Rung.BAIL, "uncut")


async def test_a_prompt_that_vllm_refuses_is_refused() -> None:
    for fields in (NO_SHORT, {"thread_hop_s": 10.0}):
        async with service(**fields) as tokens:
            with pytest.raises(RequestError) as refused:
                await tokens.prompt("demo", text([-1]))
            assert refused.value.status == 400


async def test_a_short_prompt_does_not_wait_for_a_huge_one() -> None:
    async with service(**NO_SHORT, threads=2) as tokens:
        huge = asyncio.get_running_loop().create_task(tokens.prompt("demo", text(HUGE)))
        await asyncio.sleep(0)
        for number in range(5):
            outcome = await tokens.prompt("demo", text(f"hello {number}"))
            assert outcome.rung is Rung.THREADS
            assert not huge.done()
        assert (await huge).rung is Rung.THREADS


async def test_the_queue_is_bounded_in_jobs_and_bytes() -> None:
    for fields in ({"queue_limit_jobs": 3}, {"queue_limit_bytes": 3 * len(LONG)}):
        async with service(**NO_SHORT, threads=2, queue_wait_limit_s=1000.0, **fields) as tokens:
            waiting = [
                asyncio.get_running_loop().create_task(tokens.prompt("demo", text(f"{n}{LONG}")))
                for n in range(5)
            ]
            await asyncio.sleep(0)
            assert tokens.threads.queued_jobs <= 3
            outcomes = await asyncio.gather(*waiting)
            rungs = [outcome.rung for outcome in outcomes]
            assert rungs.count(Rung.BAIL) >= 2
            # Uncut: the loop took it, and then found no place to yield.
            reasons = {outcome.reason for outcome in outcomes if not outcome.prompt}
            assert reasons <= {"overload", "uncut"}


async def test_a_result_that_nobody_waits_for_is_kept() -> None:
    async with service(
        **NO_SHORT, cache_limit_bytes=10**10, cache_entry_limit_bytes=100_000_000
    ) as tokens:
        waiting = asyncio.get_running_loop().create_task(tokens.prompt("demo", text(HUGE)))
        await until(lambda: tokens.threads._long.empty() and tokens.threads.queued_jobs)
        await asyncio.sleep(0.02)  # the thread has it, and is not done with a megabyte yet
        waiting.cancel()
        await until(lambda: len(tokens.cache) == 1)
        assert (await tokens.prompt("demo", text(HUGE))).rung is Rung.CACHE


async def test_another_block_size_voids_what_was_hashed() -> None:
    async with service(**NO_SHORT) as tokens:
        await tokens.prompt("demo", text("hello"))
        tokens.rehash(16)
        assert len(tokens.cache) == 1
        late = asyncio.get_running_loop().create_task(tokens.prompt("demo", text(LONG)))
        await asyncio.sleep(0)
        tokens.rehash(32)
        assert (tokens.block_tokens, len(tokens.cache)) == (32, 0)
        # A job begun before has the old blocks: they are used once, and not kept.
        prompt = (await late).prompt
        assert prompt is not None
        assert prompt.block_tokens == 16
        assert len(tokens.cache) == 0
        again = (await tokens.prompt("demo", text("hello"))).prompt
        assert again is not None
        assert again.block_tokens == 32


async def test_an_adapter_that_moves_gets_the_ids_of_its_new_base(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    old, new = slow_tokenizer(), Tokenizer.load("b", folder_with(tmp_path, chat_template=template))
    models = ModelTokenizers({"a": old, "b": new})
    tokens = TokenService(TokenSettings(**NO_SHORT), models, 16)
    body = body_of({"messages": [{"role": "user", "content": "hello"}]})
    assert isinstance(body, ChatBody)
    for base in ("a", "b"):
        models.adopt({"sql": base})
        before = asyncio.get_running_loop().create_task(tokens.prompt("sql", body))
        await asyncio.sleep(0)
        assert tokens.threads.queued_jobs == 1
        models.adopt({"sql": "b"})
        made = (await before).prompt
        assert made is not None
        assert made.sequences == ((old if base == "a" else new).chat_ids(body),)
    tokens.close()


WORDS = st.text(max_size=10) | st.sampled_from(["<|im_end|>", "system", "\n\n"])
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": WORDS})


@settings(max_examples=40)
@given(st.lists(st.lists(MESSAGE, min_size=1, max_size=3), min_size=1, max_size=6))
async def test_cached_ids_are_the_ids(chats: list[list[dict[str, str]]]) -> None:
    async with service(cache_limit_bytes=26 * 1024) as tokens:
        for messages in [*chats, *reversed(chats)]:
            body = body_of({"messages": messages})
            assert isinstance(body, ChatBody)
            outcome = await tokens.prompt("demo", body)
            assert outcome.prompt is not None
            assert outcome.prompt.sequences == (demo_tokenizer().chat_ids(body),)


async def test_every_rung_gives_the_same() -> None:
    body = body_of({"messages": [{"role": "user", "content": "the same for all " * 30}]})
    outcomes = []
    for fields in ({"thread_hop_s": 10.0}, NO_SHORT):
        async with service(**fields) as tokens:
            outcomes += [await tokens.prompt("demo", body), await tokens.prompt("demo", body)]
    async with with_a_full_queue(stall_budget_s=0.5) as tokens:
        outcomes.append(await tokens.prompt("demo", body))
    rungs = [outcome.rung for outcome in outcomes]
    assert rungs == [Rung.SHORT, Rung.CACHE, Rung.THREADS, Rung.CACHE, Rung.LOCAL]
    assert all(outcome.prompt == outcomes[0].prompt for outcome in outcomes)

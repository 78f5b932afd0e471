"""What the caches know is never seen in the ids: conversations that grow, change and are cut."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from tests.examples import many
from tests.tokens.models import SHARED_NAMES, lines_folder, shared
from tokenlane.config.settings import TokenSettings
from tokenlane.prompt import Prompt
from tokenlane.protocols.bodies import ChatBody, CompletionBody, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.blocks import block_hashes
from tokenlane.tokens.caches.budgets import CacheBudgets, TokenCaches
from tokenlane.tokens.caches.lru import Budget
from tokenlane.tokens.caches.openings import OpeningCache
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.encode.encoder import Encoder
from tokenlane.tokens.encode.word_cuts import LOOP_CHARS
from tokenlane.tokens.job import TokenJob
from tokenlane.tokens.keys import prompt_bytes, salt
from tokenlane.tokens.ladder import Speed
from tokenlane.tokens.model_tokenizers import LoadedModel
from tokenlane.tokens.rungs import short
from tokenlane.tokens.tokenizer import Tokenizer

# The tokens that stand around messages where a model has no chat template of its own.
AROUND = {
    "mistral-v0.3": ("[INST]", "[/INST]"),
    "deepseek-v4": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
}
MODELS = ["demo", "newlines", "metaspace", *SHARED_NAMES]
LONG_S = 1e9
MANY = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=many(24))


def roomy() -> TokenCaches:
    return TokenCaches.of(CacheBudgets.of(TokenSettings()))


def tiny() -> TokenCaches:
    request, body, shape, opening, segment, listed = [Budget(5_000, 2_000) for _ in range(6)]
    prefix = Budget(40_000, 20_000)
    return TokenCaches.of(CacheBudgets(request, body, shape, opening, segment, prefix, listed))


@cache
def tokenizer_of(model: str) -> Tokenizer:
    if model in SHARED_NAMES:
        return Tokenizer.load(model, shared(model))
    if model == "metaspace":
        # Cut at lines, for its template's marks are no tokens.
        with TemporaryDirectory() as made:
            return Tokenizer.load(model, lines_folder(model, Path(made)))
    tokenizer = Tokenizer.load(model, demo_folder())
    if model == "newlines":
        # Tokens that begin inside others, as some models have: a search must begin at a cut.
        backend = Backend.from_str(tokenizer.encoder.to_json())
        backend.add_tokens([AddedToken("\n" * count, normalized=False) for count in (2, 3)])
        tokenizer.encoder = Encoder(backend)
        assert not tokenizer.encoder.cuts_anywhere
    return tokenizer


def prompt_of(model: str, value: dict[str, Any], caches: TokenCaches, blocks: int) -> Prompt:
    result = job_of(model, value, caches, blocks).run()
    assert result.prompt is not None, result.error
    return result.prompt


def job_of(model: str, value: dict[str, Any], caches: TokenCaches, blocks: int) -> TokenJob:
    body = read(value)
    return TokenJob(
        LoadedModel(tokenizer_of(model), Speed(), caches),
        body,
        key=b"",
        size_bytes=prompt_bytes(body).nbytes,
        block_tokens=blocks,
        salt=salt(model, body),
    )


def expected(model: str, value: dict[str, Any], block_tokens: int) -> Prompt:
    """The prompt as the tokenizer makes it of the whole text, at once."""
    body, tokenizer = read(value), tokenizer_of(model)
    if isinstance(body, ChatBody):
        ids = tokenizer.chat_ids(body)
    else:
        (ids,) = tokenizer.completion_ids(body)
    blocks = block_hashes(ids, block_tokens, salt(model, body))
    return Prompt((ids,), blocks, block_tokens, len(ids) // 4)


def read(value: dict[str, Any]) -> ChatBody | CompletionBody:
    kind = Kind.CHAT if "messages" in value else Kind.COMPLETION
    body = inspect(kind, json.dumps(value).encode())
    assert isinstance(body, ChatBody | CompletionBody)
    return body


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
MARKS = ["<|im_end|>", "</s>", "[INST]", "<", "\n\n\n"]
PIECES = ["word ", "  \n", "é", "中文", "\U0001f469\u200d\U0001f469", *MARKS]
CONTENTS = st.builds(
    lambda parts, times: "".join(parts) * times,
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=4),
    st.sampled_from([1, 1, 3, 40, 300]),
)
TURNS = st.one_of(
    st.fixed_dictionaries({"role": st.just("assistant"), "content": CONTENTS}),
    st.fixed_dictionaries({"role": st.just("user"), "content": CONTENTS}),
    st.just({"role": "assistant", "content": "", "tool_calls": [CALL]}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": CONTENTS}),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.lists(TURNS, min_size=1, max_size=3)),
        st.tuples(st.just("grow"), st.lists(TURNS, min_size=1, max_size=3)),
        st.tuples(st.just("edit"), st.tuples(st.integers(0, 20), CONTENTS)),
        st.tuples(st.just("forget"), st.integers(1, 5)),
        st.tuples(st.just("cut"), st.integers(1, 5)),
        st.tuples(st.just("set"), st.sampled_from(["tools", "thinking", "special", "salt"])),
        st.tuples(st.just("again"), st.none()),
    ),
    min_size=2,
    max_size=10,
)
FIRST = [
    {"role": "system", "content": "You are of help. " * 80},
    {"role": "user", "content": "a question"},
]
SETTINGS: dict[str, dict[str, Any]] = {
    "tools": {"tools": [TOOL]},
    "thinking": {"chat_template_kwargs": {"enable_thinking": False}},
    "special": {"add_special_tokens": True},
    "salt": {"cache_salt": "mine"},
}


def requests(model: str, steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """The request after each step of a conversation."""
    messages: list[dict[str, Any]] = list(FIRST)
    given: set[str] = set()
    made = []
    for kind, value in steps:
        if kind == "grow":
            messages = messages + value
        elif kind == "edit":
            at = value[0] % len(messages)
            edited = {**messages[at], "content": value[1]}
            messages = [*messages[:at], edited, *messages[at + 1 :]]
        elif kind == "forget":
            messages = [messages[0], *messages[1:][value:]]
        elif kind == "cut":
            messages = messages[:-value] or list(FIRST)
        elif kind == "set":
            given ^= {value}
        extra: dict[str, Any] = {}
        for name in sorted(given):
            extra |= SETTINGS[name]
        if not any(message["role"] == "user" for message in messages):
            messages = [*messages, FIRST[1]]
        if model in AROUND:
            special = extra.get("add_special_tokens", False)
            extra = {name: extra[name] for name in extra if name == "cache_salt"}
            left, right = AROUND[model]
            text = "".join(f"{left}{one['role']} {one['content']}{right}" for one in messages)
            made.append({"prompt": text, "add_special_tokens": special, **extra})
        else:
            made.append({"messages": messages, **extra})
    return made


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("made", [roomy, tiny])
def test_the_caches_change_nothing(model: str, made: Callable[[], TokenCaches]) -> None:
    tokenizer_of(model)
    # One set of caches for all examples: they meet what others left.
    caches = made()

    @MANY
    @given(STEPS, st.sampled_from([1, 16]))
    def conversations(steps: list[tuple[str, Any]], blocks: int) -> None:
        for value in requests(model, steps):
            assert prompt_of(model, value, caches, blocks) == expected(model, value, blocks)

    conversations()
    assert caches.prefixes.hits > 20
    assert caches.segments.hits > 20
    assert (caches.prefixes.evictions > 0) == (made is tiny)
    for one in caches:
        assert one.size_bytes >= 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("limit_bytes", [1_000_000, 10_000], ids=["roomy", "tiny"])
def test_the_short_rung_makes_the_same(model: str, limit_bytes: int) -> None:
    tokenizer = tokenizer_of(model)
    openings = OpeningCache(Budget(limit_bytes, 100_000))
    caches = tiny()._replace(openings=openings)

    def asked(steps: list[tuple[str, Any]], blocks: int) -> None:
        for value in requests(model, steps):
            job = job_of(model, value, caches, blocks)
            made = short.run(job, TokenSettings(thread_hop_s=LONG_S, stall_budget_s=LONG_S))
            if made is None:
                # The loop encodes no more in one piece.
                assert len(json.dumps(value)) > LOOP_CHARS
            else:
                assert made.prompt == expected(model, value, blocks)

    MANY(given(STEPS, st.sampled_from([1, 16]))(asked))()
    # More openings than there is room for, whatever was drawn; each is kept from its second time.
    for number in range(24):
        system = ("edit", (0, f"You are number {number}. " * 30))
        asked([system, *[("edit", (1, question)) for question in "abc"]], 16)
    assert (openings.hits > 0) == tokenizer.encoder.cuts_anywhere
    if limit_bytes == 10_000:
        assert (openings.evictions > 0) == tokenizer.encoder.cuts_anywhere
    assert 0 <= openings.size_bytes <= limit_bytes


@pytest.mark.parametrize("model", MODELS)
def test_threads_share_the_caches(model: str) -> None:
    tokenizer_of(model)
    caches = tiny()

    @settings(MANY, max_examples=8)
    @given(st.lists(STEPS, min_size=4, max_size=4))
    def conversations(all_steps: list[list[tuple[str, Any]]]) -> None:
        work = [value for steps in all_steps for value in requests(model, steps)]
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda value: prompt_of(model, value, caches, 16), work * 2))
        assert made == [expected(model, value, 16) for value in work] * 2

    conversations()
    for one in caches:
        assert one.size_bytes == one.budget.size_bytes <= one.budget.limit_bytes


def turn(number: int) -> list[dict[str, str]]:
    words = f"turn {number} of many words. " * 20
    return [{"role": "assistant", "content": words}, {"role": "user", "content": words}]


@pytest.mark.parametrize("thinking", [True, False])
def test_the_next_turn_costs_its_new_text(thinking: bool) -> None:
    caches = roomy()
    messages = list(FIRST)
    extra = {} if thinking else SETTINGS["thinking"]
    for number in range(30):
        messages += turn(number)
        value = {"messages": messages, **extra}
        misses = caches.segments.misses
        assert prompt_of("demo", value, caches, 16) == expected("demo", value, 16)
        # The two messages, and what stands around them the first time.
        assert number == 0 or caches.segments.misses <= misses + 2
    # One conversation is kept once.
    size_bytes = sum(len(one["content"]) for one in messages)
    assert (caches.prefixes.hits, caches.prefixes.misses, len(caches.prefixes)) == (29, 1, 1)
    assert caches.segments.size_bytes > size_bytes
    assert caches.prefixes.size_bytes > size_bytes


def test_conversations_of_one_system_prompt_share_it_and_keep_their_own() -> None:
    caches = roomy()
    starts = [[FIRST[0], *turn(number)[1:]] for number in range(5)]
    for messages in starts:
        prompt_of("demo", {"messages": messages}, caches, 16)
    assert (caches.prefixes.hits, len(caches.prefixes)) == (4, 5)
    for number, messages in enumerate(starts):
        misses = caches.segments.misses
        value = {"messages": messages + turn(100 + number)}
        assert prompt_of("demo", value, caches, 16) == expected("demo", value, 16)
        assert caches.segments.misses <= misses + 2
    assert len(caches.prefixes) == 5


def test_an_edit_in_the_middle_costs_the_edit() -> None:
    caches = roomy()
    messages = FIRST + [message for number in range(40) for message in turn(number)]
    prompt_of("demo", {"messages": messages}, caches, 16)
    misses = caches.segments.misses
    messages[10] = {**messages[10], "content": "an edit"}
    value = {"messages": messages}
    assert prompt_of("demo", value, caches, 16) == expected("demo", value, 16)
    assert caches.segments.misses == misses + 1


@pytest.mark.parametrize(
    "change", [{"cache_salt": "x"}, {"add_special_tokens": True}, {"block": 8}], ids=str
)
def test_what_changes_the_hashes_is_no_prefix(change: dict[str, Any]) -> None:
    caches = roomy()
    prompt_of("demo", {"messages": FIRST}, caches, 16)
    blocks = change.pop("block", 16)
    value = {"messages": FIRST, **change}
    assert prompt_of("demo", value, caches, blocks) == expected("demo", value, blocks)
    assert caches.prefixes.hits == 0


def test_no_budget_no_entries() -> None:
    caches = TokenCaches.of(CacheBudgets.of(TokenSettings(cache_limit_bytes=0)))
    for _ in range(2):
        prompt_of("demo", {"messages": FIRST}, caches, 16)
    assert [(len(one), one.size_bytes) for one in caches] == [(0, 0)] * 4

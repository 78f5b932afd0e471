"""The short rung and its openings: what it finishes, what it hands over, what it keeps."""

import time
from itertools import count
from sys import getsizeof
from typing import Any

import pytest

from tests.support import demo_tokenizer
from tests.tokens.test_job import body_of, job_of
from tokenlane.config.settings import TokenSettings
from tokenlane.errors import RequestError, Unrenderable
from tokenlane.prompt import Prompt
from tokenlane.protocols.bodies import ChatBody
from tokenlane.tokens.caches.budgets import CacheBudgets, TokenCaches
from tokenlane.tokens.caches.lru import Budget
from tokenlane.tokens.caches.openings import Opening, OpeningCache
from tokenlane.tokens.job import Tokenized
from tokenlane.tokens.keys import salt
from tokenlane.tokens.ladder import Speed
from tokenlane.tokens.model_tokenizers import LoadedModel
from tokenlane.tokens.rungs import short

ROOT = b"root"
SYSTEM = "You are of help. " * 80
LONG_S = 1e9


def limits(hop_s: float = LONG_S, budget_s: float = LONG_S) -> TokenSettings:
    return TokenSettings(thread_hop_s=hop_s, stall_budget_s=budget_s)


def opening_cache(limit_bytes: int = 1_000_000) -> OpeningCache:
    return OpeningCache(Budget(limit_bytes, limit_bytes))


def empty(openings: OpeningCache | None = None) -> TokenCaches:
    made = TokenCaches.of(CacheBudgets.of(TokenSettings()))
    return made if openings is None else made._replace(openings=openings)


def chat(question: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return {"messages": messages, **fields}


def run(value: dict[str, Any], kept: OpeningCache) -> Tokenized | None:
    return short.run(job_of(value, caches=empty(kept)), limits())


def test_an_opening_is_kept_from_its_second_sight() -> None:
    kept = opening_cache()
    sights = []
    for number in range(4):
        run(chat(f"question {number}"), kept)
        sights.append((len(kept), kept.hits))
    assert sights == [(0, 0), (1, 0), (1, 1), (1, 2)]
    run(chat("question", cache_salt="another's"), kept)
    assert kept.hits == 2


def test_what_costs_too_much_is_handed_over_with_its_text() -> None:
    value = chat("word " * 1000)
    job = job_of(value)
    assert short.run(job, limits(0.0)) is None
    assert isinstance(job.body, ChatBody)
    assert job.text == demo_tokenizer().chat_text(job.body)
    assert job.run().prompt == job_of(value).run().prompt


def test_what_is_known_does_not_count() -> None:
    """The limit is for the text behind the opening."""
    kept, limit_s = opening_cache(), Speed().encode_s(600)
    for number in range(2):
        run(chat(f"question {number}"), kept)
    made = short.run(job_of(chat("another"), caches=empty(kept)), limits(limit_s, 0.0))
    assert made is not None
    assert made.prompt == job_of(chat("another")).run().prompt
    assert short.run(job_of(chat("another")), limits(limit_s, 0.0)) is None


def test_an_opening_too_long_for_the_loop_is_not_encoded_there() -> None:
    kept = opening_cache()
    results = [
        short.run(job_of(chat(f"question {number}"), caches=empty(kept)), limits(LONG_S, 0.0))
        for number in range(2)
    ]
    assert results[0] is not None
    assert results[1] is None
    assert len(kept) == 0


@pytest.mark.parametrize("words", [7_000, 9_000])
def test_however_fast_other_texts_were_a_long_one_is_not_encoded_on_the_loop(words: int) -> None:
    """As an opening, and as a text without one."""
    long = "word " * words
    for value in ({"prompt": long}, {"messages": [{"role": "system", "content": long}]}):
        kept, fast = opening_cache(), Speed()
        fast.encode_bytes_per_s = 1e12
        jobs = [job_of(value, speed=fast, caches=empty(kept)) for _ in range(2)]
        assert [short.run(job, limits(budget_s=0.002)) for job in jobs] == [None, None]
        assert len(kept) == 0


def test_a_loop_that_may_stall_encodes_any_text() -> None:
    value = {"messages": [{"role": "system", "content": "word " * 100_000}]}
    made = short.run(job_of(value), limits())
    assert made is not None
    assert made.prompt == job_of(value).run().prompt


def test_the_speed_is_learned_from_openings_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that goes on by a second whenever it is read."""
    monkeypatch.setattr(time, "perf_counter", count().__next__)
    kept, speed, alike = opening_cache(), Speed(), Speed()
    value = chat("question")
    body = body_of(value)
    assert isinstance(body, ChatBody)
    whole_chars = len(demo_tokenizer().chat_text(body))
    short.run(job_of(value, speed=speed, caches=empty(kept)), limits())
    alike.learn_encode(whole_chars, 1.0)
    assert speed.encode_bytes_per_s == alike.encode_bytes_per_s
    short.run(job_of(value, speed=speed, caches=empty(kept)), limits())
    ((opening,),) = kept._items.values()
    alike.learn_encode(opening.chars, 1.0)
    alike.learn_encode(whole_chars - opening.chars, 1.0)
    assert speed.encode_bytes_per_s == alike.encode_bytes_per_s


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": [1, 2, 3]},
        {"prompt": ["one", "two"]},
        {"prompt": "a prompt", "truncate_prompt_tokens": 1},
        {"prompt": "a prompt", "add_special_tokens": False},
        chat("question", truncate_prompt_tokens=5),
    ],
)
def test_other_prompts_are_made_by_the_job(value: dict[str, Any]) -> None:
    made = run(value, opening_cache())
    assert made is not None
    assert made.prompt == job_of(value).run().prompt


def test_other_prompts_keep_to_the_limit() -> None:
    value = {"prompt": ["word " * 1000, "two"]}
    assert short.run(job_of(value), limits(0.001)) is None


def plainly(chat: dict[str, Any], caches: TokenCaches, limit_s: float = LONG_S) -> Prompt | None:
    body = body_of(chat)
    assert isinstance(body, ChatBody)
    model, own_salt = LoadedModel(demo_tokenizer(), Speed(), caches), salt("demo", body)
    return short.plain(model, body, 4, own_salt, limits(limit_s))


def known(**fields: Any) -> TokenCaches:
    """Caches that know the shape of `chat`."""
    caches = empty()
    for number in range(2):
        job_of(chat(f"question {number}", **fields), caches=caches).run()
    return caches


@pytest.mark.parametrize(
    "question", ["one", "Wörter 字 🙂", "<|im_end|>", "a" * 3000, "\n \t", "word " * 900]
)
def test_a_plain_chat_of_a_known_shape_needs_no_job(question: str) -> None:
    caches = known()
    for salted in ({}, {"cache_salt": "mine"}):
        value = chat(question, **salted)
        for _ in range(3):  # without an opening, while it is learnt, and with it
            assert plainly(value, caches) == job_of(value).run().prompt
    assert caches.openings.hits > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"add_generation_prompt": False},
        {"documents": [], "chat_template_kwargs": {"a": 1}},
    ],
)
def test_so_does_one_that_says_more_if_that_is_known(fields: dict[str, Any]) -> None:
    caches = known(**fields)
    value = chat("another", **fields)
    assert plainly(value, caches) == job_of(value).run().prompt
    assert plainly(value, known()) is None


@pytest.mark.parametrize(
    "fields",
    [{"add_special_tokens": True}, {"truncate_prompt_tokens": 5}, {"truncate_prompt_tokens": None}],
)
def test_a_chat_whose_ids_are_not_those_of_its_text_is_left_to_a_job(
    fields: dict[str, Any],
) -> None:
    body = body_of(chat("question", **fields))
    assert isinstance(body, ChatBody)
    assert not short.takes(body)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "text",
        [{"role": "user", "content": "alone"}],
        [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text"}]}],
        [{"role": "system", "content": "a"}, {"role": "user", "content": "b", "name": "c"}],
    ],
)
def test_any_other_chat_is_left_to_a_job(messages: Any) -> None:
    assert plainly({"messages": messages}, known()) is None


def test_a_plain_chat_that_takes_too_long_is_left_to_a_job() -> None:
    assert plainly(chat("question"), known(), limit_s=0.0) is None


def test_refusals_and_unknown_shapes_are_told() -> None:
    refused = run({"messages": []}, opening_cache())
    assert refused is not None
    assert isinstance(refused.error, RequestError)
    unknown = run({"prompt": "a", "suffix": "b"}, opening_cache())
    assert unknown is not None
    assert isinstance(unknown.error, Unrenderable)


def test_a_text_that_goes_on_without_a_cut_has_no_opening() -> None:
    encoder, kept = demo_tokenizer().encoder, opening_cache()
    kept.put(ROOT, Opening(SYSTEM, b"", b""))
    assert kept.find(encoder, ROOT, SYSTEM + "<|im_end|>") is not None
    assert kept.find(encoder, ROOT, SYSTEM + "and more") is None
    assert kept.find(encoder, ROOT, SYSTEM) is None
    assert kept.find(encoder, b"other", SYSTEM + "<|im_end|>") is None


def test_the_longest_of_its_like_is_found() -> None:
    encoder, kept = demo_tokenizer().encoder, opening_cache()
    longer = SYSTEM + "<|im_end|>more"
    for text in (SYSTEM, longer):
        kept.put(ROOT, Opening(text, b"", b""))
    found = kept.find(encoder, ROOT, longer + "<|im_end|>")
    assert found is not None
    assert found.text == longer


def test_openings_that_begin_alike_are_bounded() -> None:
    encoder, kept = demo_tokenizer().encoder, opening_cache()
    for number in range(9):
        kept.put(ROOT, Opening(f"{SYSTEM} {number}", b"", b""))
    assert (len(kept), kept.evictions) == (4, 5)
    assert kept.find(encoder, ROOT, f"{SYSTEM} 8<|im_end|>") is not None


def test_the_least_recently_used_goes() -> None:
    encoder, kept = demo_tokenizer().encoder, opening_cache(6_000)
    texts = [f"{number} {SYSTEM}" for number in range(3)]
    for text in texts[:2]:
        kept.put(ROOT, Opening(text, b"", b""))
    assert kept.find(encoder, ROOT, texts[0] + "<|im_end|>") is not None
    kept.put(ROOT, Opening(texts[2], b"", b""))
    found = [kept.find(encoder, ROOT, text + "<|im_end|>") is not None for text in texts]
    assert found == [True, False, True]
    assert len(kept) == 2
    key_bytes = getsizeof(ROOT) + getsizeof(texts[0][:512])
    assert kept.size_bytes == 2 * (Opening(texts[0], b"", b"").size_bytes + key_bytes)
    kept = opening_cache(limit_bytes=100)
    kept.put(ROOT, Opening(SYSTEM, b"", b""))
    assert len(kept) == 0

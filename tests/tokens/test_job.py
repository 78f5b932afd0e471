"""A job: the same ids whoever runs its steps, and however often it stops between them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import demo_tokenizer
from tokenlane.config.settings import TokenSettings
from tokenlane.errors import RequestError, Unrenderable
from tokenlane.prompt import Prompt
from tokenlane.protocols.bodies import ChatBody, CompletionBody, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.blocks import block_hashes
from tokenlane.tokens.caches.budgets import CacheBudgets, TokenCaches
from tokenlane.tokens.ids import pack
from tokenlane.tokens.job import Tokenized, TokenJob
from tokenlane.tokens.keys import prompt_bytes, salt
from tokenlane.tokens.ladder import Speed
from tokenlane.tokens.model_tokenizers import LoadedModel


def body_of(value: dict[str, Any]) -> ChatBody | CompletionBody:
    kind = Kind.CHAT if "messages" in value else Kind.COMPLETION
    body = inspect(kind, json.dumps(value).encode())
    assert isinstance(body, ChatBody | CompletionBody)
    return body


def job_of(
    value: dict[str, Any],
    block_tokens: int = 4,
    speed: Speed | None = None,
    caches: TokenCaches | None = None,
) -> TokenJob:
    body = body_of(value)
    return TokenJob(
        LoadedModel(
            demo_tokenizer(),
            speed or Speed(),
            caches or TokenCaches.of(CacheBudgets.of(TokenSettings())),
        ),
        body,
        key=b"",
        size_bytes=prompt_bytes(body).nbytes,
        block_tokens=block_tokens,
        salt=salt("demo", body),
    )


def stepped(job: TokenJob, limit_s: float = float("inf")) -> tuple[Prompt, int]:
    steps = job.steps(limit_s)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


WORDS = st.text(max_size=12) | st.sampled_from(["<|im_end|>", "<|im_start|>user\n", "\U0001f469‍"])
ROLES = st.sampled_from(["system", "user", "assistant"])
MESSAGE = st.fixed_dictionaries({"role": ROLES, "content": WORDS})
MESSAGES = st.lists(MESSAGE, min_size=1, max_size=4)


@given(MESSAGES, st.booleans(), st.none() | st.integers(1, 20))
def test_a_chat_in_steps(messages: list[dict[str, str]], special: bool, keep: int | None) -> None:
    value: dict[str, Any] = {"messages": messages, "add_special_tokens": special}
    if keep is not None:
        value["truncate_prompt_tokens"] = keep
    body = body_of(value)
    assert isinstance(body, ChatBody)
    ids = demo_tokenizer().chat_ids(body)
    whole = job_of(value).run()
    assert whole.prompt is not None
    assert whole.prompt.sequences == (ids,)
    assert whole.prompt.blocks == block_hashes(ids, 4, salt("demo", body))
    prompt, _ = stepped(job_of(value))
    assert prompt == whole.prompt


@given(st.lists(WORDS, min_size=1, max_size=4), st.booleans())
def test_completions_in_steps(prompts: list[str], special: bool) -> None:
    value = {"prompt": prompts, "add_special_tokens": special}
    body = body_of(value)
    assert isinstance(body, CompletionBody)
    prompt, steps = stepped(job_of(value))
    assert prompt.sequences == demo_tokenizer().completion_ids(body)
    assert prompt.tokens == sum(len(sequence) // 4 for sequence in prompt.sequences)
    assert steps >= len(prompts)
    assert job_of(value).run().prompt == prompt


@pytest.mark.parametrize(
    ("prompt", "sequences"),
    [([1, 2, 3], (pack([1, 2, 3]),)), ([[1], [2, 3]], (pack([1]), pack([2, 3])))],
)
def test_ids_pass_as_they_came(prompt: Any, sequences: tuple[bytes, ...]) -> None:
    result = job_of({"prompt": prompt}).run()
    assert result.prompt is not None
    assert result.prompt.sequences == sequences


def test_other_models_and_salts_have_other_blocks() -> None:
    value = {"prompt": "the quick brown fox jumps over the lazy dog " * 4}
    one = job_of(value).run().prompt
    other = job_of({**value, "cache_salt": "mine"}).run().prompt
    assert one is not None
    assert other is not None
    assert one.sequences == other.sequences
    assert one.blocks != other.blocks


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"prompt": [-1]}, RequestError),
        ({"prompt": [1, "a"]}, RequestError),
        ({"prompt": [1.0, 2]}, Unrenderable),
        ({"prompt": [True, 1]}, Unrenderable),
        ({"prompt": [[1, True], [2]]}, Unrenderable),
        ({"prompt": None}, Unrenderable),
        ({"prompt": "a", "suffix": "b"}, Unrenderable),
        ({"messages": [{"role": "user", "content": "a"}], "chat_template": "x"}, Unrenderable),
        ({"messages": 7}, RequestError),
    ],
)
def test_what_has_no_ids(value: dict[str, Any], kind: type[Exception]) -> None:
    result = job_of(value).run()
    assert result.prompt is None
    assert isinstance(result.error, kind)
    assert result.seconds >= 0.0


def test_a_piece_that_would_take_too_long_is_not_begun() -> None:
    speed = Speed()
    long = "word " * 2000
    uncut = job_of({"prompt": long}, speed=speed)
    with pytest.raises(Unrenderable, match="uncut"):
        stepped(uncut, limit_s=0.001)
    # The same text, cut by special tokens, is many small pieces.
    pieces = [f"word {number} " * 10 for number in range(100)]
    cut = job_of({"prompt": "<|im_end|>".join(pieces)}, speed=speed)
    prompt, steps = stepped(cut, limit_s=0.001)
    assert steps >= 5
    assert prompt.tokens > 1000


def test_slices_give_what_one_run_gives() -> None:
    pieces = {"prompt": "<|im_end|>".join(f"word {n} " * 2000 for n in range(5))}
    whole, sliced = job_of(pieces), job_of(pieces)
    slices = 1
    while (result := sliced.advance(0.0)) is None:
        slices += 1
    assert slices > 2
    assert result.prompt == whole.run().prompt


def test_a_long_job_teaches_the_speed() -> None:
    speed = Speed()
    before = speed.render_bytes_per_s, speed.encode_bytes_per_s
    job_of({"prompt": "a story of words " * 5000}, speed=speed).run()
    assert speed.encode_bytes_per_s != before[1]


def test_whatever_a_job_raises_is_its_result(caplog: pytest.LogCaptureFixture) -> None:
    refused, unknown = RequestError(400, "no"), Unrenderable("json")
    assert Tokenized.failed(refused, 0.1) == Tokenized(None, refused, 0.1)
    assert Tokenized.failed(unknown, 0.1) == Tokenized(None, unknown, 0.1)
    assert not caplog.records
    error = Tokenized.failed(ZeroDivisionError(), 0.1).error
    assert isinstance(error, Unrenderable)
    assert error.reason == "failed"
    assert [record.exc_info is not None for record in caplog.records] == [True]
    with pytest.raises(KeyboardInterrupt):
        Tokenized.failed(KeyboardInterrupt(), 0.1)

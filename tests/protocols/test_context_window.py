"""The context window: refused here as a replica would refuse it, to the letter."""

import json

import pytest

from tests.raw import post
from tests.support import demo_tokenizer, gateway, replicas
from tokenlane.errors import RequestError
from tokenlane.prompt import Prompt
from tokenlane.protocols import context_window
from tokenlane.simulator import vllm_errors


def prompt(*lengths: int) -> Prompt:
    return Prompt(tuple(bytes(4 * length) for length in lengths), b"", 16, sum(lengths))


@pytest.mark.parametrize("lengths", [(10,), (10, 10, 10), (0,), ()])
def test_each_prompt_of_a_request_has_the_whole_window(lengths: tuple[int, ...]) -> None:
    context_window.check(prompt(*lengths), 10, text=True)


@pytest.mark.parametrize(
    ("text", "said"), [(True, "at least 11 input"), (False, "14 input"), (False, "at least 11")]
)
def test_one_too_long_is_enough(text: bool, said: str) -> None:
    longest = 11 if said == "at least 11" else 14
    with pytest.raises(RequestError, match=said) as refused:
        context_window.check(prompt(3, longest), 10, text=text)
    theirs = vllm_errors.too_long(10, longest, cut=text)
    assert (refused.value.status, refused.value.message) == (theirs.status, theirs.message)
    assert refused.value.param == theirs.param == "input_tokens"


@pytest.mark.parametrize("asked", [{"prompt": "word " * 40}, {"prompt": [7] * 40}])
async def test_no_replica_sees_it(asked: dict[str, object]) -> None:
    # Nothing listens there: a request that went on would be refused with 503.
    state = replicas(["http://127.0.0.1:9"], max_model_tokens=32)
    async with gateway(state=state, tokenizer=demo_tokenizer()) as bench:
        body = json.dumps({"model": "demo", **asked}).encode()
        answer = await bench.ask(post("/v1/completions", body))
    error = answer.json["error"]
    assert (answer.status, error["type"], error["code"]) == (400, "BadRequestError", 400)
    assert "maximum context length is 32 tokens" in error["message"]

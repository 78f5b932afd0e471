"""Prompts for an engine: known ones are the same, new ones are not, ids stand beside the text."""

import json

from bench.loads.engine_prompts import KNOWN, EnginePrompts, with_ids


def test_known_are_the_same_and_new_are_not() -> None:
    prompts = EnginePrompts()
    assert prompts.known(100) == prompts.known(100)
    assert len(set(prompts.known(100))) == KNOWN
    made = [*prompts.new(5, 100), *prompts.new(5, 100)]
    assert len(set(made)) == 10
    assert all(80 < len(prompts.ids(body)) < 140 for body in made)


def test_so_much_is_shared() -> None:
    prompts = EnginePrompts()
    one, other = (prompts.ids(body) for body in prompts.new(2, 400, shared=0.5))
    same = next(at for at, (a, b) in enumerate(zip(one, other)) if a != b)
    assert 0.4 < same / len(one) < 0.6
    one, other = (prompts.ids(body) for body in prompts.new(2, 400))
    assert next(at for at, (a, b) in enumerate(zip(one, other)) if a != b) < 16


def test_ids_stand_beside_the_messages() -> None:
    prompts = EnginePrompts(7, stream=True)
    (body,) = prompts.new(1, 50)
    (asked,) = (json.loads(one) for one in prompts.as_ids([body]))
    assert asked.pop("kv_transfer_params") == {"prompt_token_ids": prompts.ids(body)}
    assert asked == json.loads(body)
    assert (asked["max_tokens"], asked["stream"]) == (7, True)
    assert json.loads(with_ids(b"{}"[:-1] + b'"a":1}', [1, 2]))["a"] == 1

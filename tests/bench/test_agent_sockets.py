"""The tasks of agents as chats, and what is told of them."""

import json
from itertools import pairwise

from bench import agent_sockets, agents
from bench.agent_requests import Call, Maker, messages, text
from bench.agent_sockets import Done
from bench.systems import MODEL_FOLDER
from tokenlane.tokens.tokenizer import Tokenizer


def test_a_chat_grows_by_whole_messages() -> None:
    (task,) = agents.tasks(1, 3, 1, seed=4)[0]
    work = Maker(1, header=True).work(task)
    first, second = (
        json.loads(call.data.partition(b"\r\n\r\n")[2])["messages"]
        for call in (work.first, work.second)
    )
    assert [one["role"] for one in first] == ["system", "user"]
    assert [one["role"] for one in second] == ["system", "user", "assistant", "user"]
    assert second[:2] == first
    assert len(work.children) == 3
    systems = set()
    for calls in work.children:
        assert b"X-Correlation-ID: task-%d\r\n" % task.parent in calls[0].data
        assert calls[0].shared
        assert not any(call.shared for call in calls[1:])
        asked = [json.loads(call.data.partition(b"\r\n\r\n")[2])["messages"] for call in calls]
        assert all(longer[: len(one)] == one for one, longer in pairwise(asked))
        systems.add(asked[0][0]["content"])
    assert systems == {work.children[0][0].shared}
    assert b"X-Correlation-ID" not in Maker(1, header=False).work(task).first.data


def test_a_blocks_text_has_about_its_tokens() -> None:
    tokenizer = Tokenizer.load("demo", MODEL_FOLDER, fast=False)
    ((_, said), _) = messages(list(range(200)), [150], seed=7)
    tokens = len(tokenizer.encode(said, add_special_tokens=False)) // 4
    assert abs(tokens / (150 * agents.BLOCK_TOKENS) - 1) < 0.05


def test_what_siblings_share_is_counted_for_each_parent() -> None:
    tokenizer = Tokenizer.load("demo", MODEL_FOLDER, fast=False)
    shared = text(list(range(60)), 2)
    tokens = len(tokenizer.encode(shared, add_special_tokens=False)) // 4
    done = [
        Done(Call("a", 1, shared, b""), 0.0, 0),
        Done(Call("b", 1, shared, b""), 0.0, tokens // 16 * 16),
        Done(Call("c", 2, shared, b""), 0.0, tokens // 16 * 16),
        Done(Call("d", 1, "", b""), 0.0, 0),
    ]
    prefixes = agent_sockets._prefixes(done, tokenizer)
    assert prefixes is not None
    assert 0.45 < prefixes <= 0.5
    assert list(agent_sockets._bursts(done, {"a": 3.0, "b": 9.0, "c": 4.0, "d": 50.0})) == [9, 4]

"""Tasks of agents as chats: they grow by whole messages, and are as long as said."""

import json
from itertools import pairwise

from bench.loads import agent_tasks
from bench.loads.agent_requests import Maker, messages
from bench.tools.demo_model import MODEL_FOLDER
from tokenlane.tokens.tokenizer import Tokenizer


def test_a_chat_grows_by_whole_messages() -> None:
    (task,) = agent_tasks.tasks(1, 3, 1, seed=4)[0]
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
    assert abs(tokens / (150 * agent_tasks.BLOCK_TOKENS) - 1) < 0.05

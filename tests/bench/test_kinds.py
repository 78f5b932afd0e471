"""The requests of `bench kinds`: about as long as is said, new each time, and of their kind."""

import json

import pytest

from bench.experiments.kinds import KEY, KINDS, MESSAGES, load_of
from bench.loads.workload import CHAT
from bench.tools.demo_model import MODEL


@pytest.mark.parametrize("name", sorted(KINDS))
def test_requests_are_of_their_kind(name: str) -> None:
    path, parts = KINDS[name]()
    sent = [json.loads(head + b"1" + tail) for head, tail in parts]
    assert all(one["model"] == MODEL for one in sent)
    assert ("messages" in sent[0]) == (path in (CHAT, MESSAGES))
    sizes = {len(head) + len(tail) for head, tail in parts}
    least, most = (350_000, 600_000) if name.startswith("390 KB") else (14_000, 26_000)
    assert least < min(sizes) <= max(sizes) < most
    assert rf"Authorization: Bearer {KEY}\r\n" in load_of(name).script(1)

"""What siblings share is counted for each parent."""

from bench.experiments import agent_sockets
from bench.experiments.agent_sockets import Done
from bench.loads.agent_requests import Call, text
from bench.tools.demo_model import MODEL_FOLDER
from tokenlane.tokens.tokenizer import Tokenizer


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

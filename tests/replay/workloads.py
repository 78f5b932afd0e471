"""Made-up traces, the same in every run."""

from random import Random

from tokenlane.replay.trace import MOONCAKE_BLOCK_TOKENS, Request, Trace, packed


def conversations(
    count: int, turns: int, *, seed: int = 3, gap_s: float = 1.0, first_blocks: int = 8
) -> Trace:
    """Conversations that begin alike for one block and grow by two blocks a turn."""
    random = Random(seed)
    fresh = iter(range(1, 1_000_000))
    requests = []
    for _ in range(count):
        at_s = random.uniform(0, count * gap_s)
        ids = [0, *(next(fresh) for _ in range(first_blocks))]
        for _ in range(turns):
            tokens = len(ids) * MOONCAKE_BLOCK_TOKENS - random.randrange(MOONCAKE_BLOCK_TOKENS)
            requests.append(Request(at_s, tokens, random.randrange(200), packed(ids)))
            at_s += random.uniform(5, 40)
            ids = [*ids, next(fresh), next(fresh)]
    requests.sort(key=lambda request: request.arrival_s)
    return Trace("conversations", MOONCAKE_BLOCK_TOKENS, requests)

"""The replica rung: a replica's own `/tokenize`, where nothing here can make the ids."""

from collections.abc import Awaitable, Callable

from tokenlane.prompt import Prompt
from tokenlane.protocols.bodies import Prompted
from tokenlane.runtime.clock import perf_counter
from tokenlane.telemetry.stalls.stages import AWAITING, TOKENIZE_LOCAL
from tokenlane.tokens.job import Tokenized
from tokenlane.tokens.tokenizer import Tokenizer

# (model, request, its tokenizer, tokens per block) -> its ids. Raises Unrenderable.
Ask = Callable[[str, Prompted, Tokenizer | None, int], Awaitable[Prompt]]


async def run(
    ask: Ask, model: str, body: Prompted, tokenizer: Tokenizer | None, block_tokens: int
) -> Tokenized:
    """Return what a replica makes of a request. tokenizer: of the model, as far as there is one."""
    began_s = perf_counter()
    try:
        with AWAITING[TOKENIZE_LOCAL]:
            prompt = await ask(model, body, tokenizer, block_tokens)
    except Exception as problem:  # noqa: BLE001 - it is the result
        return Tokenized.failed(problem, perf_counter() - began_s)
    return Tokenized(prompt, None, perf_counter() - began_s)

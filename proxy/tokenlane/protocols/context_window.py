"""The context window: a prompt that no replica of the model can take is refused before one sees it.

Invariants:
- The answer is vLLM 0.32's own, to the letter, so that clients see one error whoever gives it.
- Only what every replica of the model would refuse is refused here.
"""

from typing import Final

from tokenlane.errors import RequestError, server_error
from tokenlane.prompt import Prompt

NO_LIMIT: Final = 2**62  # tokens; fits a compiled integer


def too_long(limit_tokens: int, prompt_tokens: int, *, cut: bool) -> RequestError:
    """Return vLLM's answer to a prompt over its limit. cut: its tokenizer stopped one token past
    the limit, as it does with text."""
    shown = limit_tokens + 1 if cut else prompt_tokens
    least = "at least " if shown == limit_tokens + 1 else ""
    return RequestError(
        400,
        f"This model's maximum context length is {limit_tokens} tokens. However, your prompt "
        f"contains {least}{shown} input tokens, which exceeds this limit even without "
        "any output tokens. Please reduce the length of the input prompt. "
        f"(parameter=input_tokens, value={shown})",
        kind="BadRequestError",
        code=400,
        param="input_tokens",
    )


def uncounted() -> RequestError:
    """Return the 503 for a prompt that could not be counted in time."""
    text = "The prompt may be longer than the model's context, and there was no time to count it."
    return server_error(503, text, "tokenizer_overloaded", retry_after_s=1)


def check(prompt: Prompt, limit_tokens: int, *, text: bool) -> None:
    """Raise RequestError 400 if one of the request's prompts is over the limit. text: they came
    as text, not as ids."""
    if not prompt.sequences and prompt.tokens > limit_tokens:
        raise too_long(limit_tokens, prompt.tokens, cut=text)
    for ids in prompt.sequences:
        if len(ids) // 4 > limit_tokens:
            raise too_long(limit_tokens, len(ids) // 4, cut=text)

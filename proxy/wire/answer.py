"""What the gateway reads of a completion, or of one chunk of it: usage and finish reasons.

Invariants:
- Reading never raises: what is no answer is None.
"""

import msgspec


class PromptTokensDetails(msgspec.Struct):
    """OpenAI's prompt_tokens_details."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """OpenAI's usage, as far as it is compared with the gateway's own counts."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens the replica found in its cache; None where it does not say."""
        details = self.prompt_tokens_details
        return details.cached_tokens if details else None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class Answer(msgspec.Struct):
    """The part of a completion (or of one of its chunks) that the gateway reads."""

    usage: Usage | None = None
    choices: list[_Choice] = []

    @property
    def aborted(self) -> bool:
        """vLLM says `abort` when it stops for its own reasons."""
        return any(choice.finish_reason == "abort" for choice in self.choices)


_decode_answer = msgspec.json.Decoder(Answer).decode


def read_answer(body: bytes) -> Answer | None:
    """A JSON answer's usage and finish reasons, or None where it is not one."""
    try:
        return _decode_answer(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

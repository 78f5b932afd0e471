"""A routing decision as one sentence. Pure.

Invariants:
- Every word of `Reason` has a sentence; a word of another version stands for itself.
"""

from collections.abc import Callable

from tokenlane.telemetry.routing_sample import CandidateSample, RoutingSample

_PLAIN = {
    "only-one": "it is the only replica that may take the request",
    "hash": "the hash of the prompt's beginning chose it",
    "session": "the hash of the session's name chose it",
    "turn": "it was next in turn",
    "chance": "it was drawn at random",
    "no-tokenizer": "this model has no tokenizer here, so the beginning of the text decided",
    "bail": "no token ids in time, so the beginning of the text decided",
    "no-tokens": "the prompt was not looked at, so the load decided",
}


def _busy(row: CandidateSample) -> str:
    others = f" ({row.others} of other gateways)" if row.others else ""
    return f"{row.requests} in flight{others}, {row.queued_tokens:,} tokens queued"


def sentence(sample: RoutingSample, name: Callable[[int], str]) -> str:
    """Why the request went where it went. name: a replica's id by its slot."""
    chosen = next((row for row in sample.candidates if row.slot == sample.slot), None)
    others = [row for row in sample.candidates if row.slot != sample.slot]
    if chosen is None or sample.reason in _PLAIN or not others:
        return _PLAIN.get(sample.reason, sample.reason)
    fullest = max(others, key=lambda row: row.cached_tokens)
    match sample.reason:
        case "prefix":
            return (
                f"it holds {chosen.cached_tokens:,} of {sample.prompt_tokens:,} prompt tokens;"
                f" the next best, {name(fullest.slot)}, holds {fullest.cached_tokens:,}"
            )
        case "cold":
            return (
                "no replica holds a prefix worth following:"
                f" it is the least busy of {sample.candidate_count} ({_busy(chosen)})"
            )
        case "spill":
            return (
                f"{name(fullest.slot)} holds {fullest.cached_tokens:,} tokens but is too busy"
                f" ({_busy(fullest)})"
            )
        case "least-load":
            return f"it is the least busy of {sample.candidate_count} ({_busy(chosen)})"
        case _:
            return sample.reason

"""What one simulated replica is like. Frozen; all replicas of a fleet share it.

Invariants:
- A rate of None and an interval of 0 mean "instant": then nothing waits for a timer.
- Times are simulated on the wall clock, so a replica is never faster than its real work.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tokenlane.config.settings import (
    MIB,
    Bytes,
    CountFromOne,
    File,
    Seconds,
    SecondsAboveZero,
    restart,
)

Rate = Annotated[float, Meta(gt=0)]


# A table, as tokenlane.config.settings.
# fmt: off
class SimulatorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A replica's model, cache, speeds and limits. The defaults are instant and unlimited."""

    model: Annotated[str, restart("served name")] = "demo"
    folder: Annotated[str | None, restart("the tokenizer's folder; without it the demo's")] = None
    adapters: Annotated[str, restart("LoRA adapters loaded from the start", metavar="A,B")] = ""
    max_model_tokens: Annotated[CountFromOne, restart("most tokens of prompt and answer")] = 131_072
    block_tokens: Annotated[CountFromOne, restart("tokens in a block of the KV cache")] = 16
    cache_blocks: Annotated[CountFromOne | None, restart(
        "blocks in the KV cache; without it nothing is evicted", metavar="N")] = None
    host_cache_blocks: Annotated[CountFromOne | None, restart(
        "blocks that are kept in the CPU's memory too, as vLLM's offloading", metavar="N")] = None
    cache_generated: Annotated[bool, restart("cache generated tokens too, as vLLM does")] = False
    prefill_tokens_per_s: Annotated[Rate | None, restart(
        "one prompt after the other; without it instant", metavar="X")] = None
    token_interval_s: Annotated[Seconds, restart("time between two tokens of a stream")] = 0.0
    running_limit: Annotated[CountFromOne, restart("most sequences in prefill or decode")] = 256
    queue_limit: Annotated[int | None, restart(
        "most sequences waiting, more get 503; without it any", metavar="N")] = None
    frontend_bytes_per_s: Annotated[Rate | None, restart(
        "template and tokenizing, by bytes of bodies; without it instant", metavar="X")] = None
    frontend_processes: Annotated[CountFromOne, restart("how many bodies at once")] = 1
    output_tokens: Annotated[CountFromOne, restart("tokens of an answer, if not asked for")] = 16
    report_cached_tokens: Annotated[bool, restart("vLLM's --enable-prompt-tokens-details")] = True
    echo_request_id: Annotated[bool, restart("vLLM's --enable-request-id-headers")] = False
    keep_alive_s: Annotated[SecondsAboveZero, restart("closes idle connections")] = 5.0
    tokenize_threads: Annotated[CountFromOne, restart("threads that tokenize long bodies")] = 2
    prompt_cache_bytes: Annotated[Bytes, restart(
        "memory for prompts tokenized before, of all replicas")] = 256 * MIB
    kv_events: Annotated[Literal["off", "maps", "arrays"], restart(
        "tell over ZMQ what the cache holds: as vLLM 0.32, or earlier")] = "off"
    lacks: Annotated[str, restart(
        "paths that answer 404, and of answers usage and max_model_len", metavar="A,B")] = ""
    store_responses: Annotated[bool, restart("vLLM's VLLM_ENABLE_RESPONSES_API_STORE")] = False
    execution_log: Annotated[File, restart(
        "gets a line for each request the engine took: port, x-request-id, monotonic seconds")] = ""

    @property
    def adapter_names(self) -> list[str]:
        """Those of `adapters`."""
        return _names(self.adapters)

    @property
    def lacked(self) -> frozenset[str]:
        """Those of `lacks`."""
        return frozenset(_names(self.lacks))

    @property
    def context_tokens(self) -> int:
        """Prompt and answer together: what the model allows and the cache can hold."""
        if self.cache_blocks is None:
            return self.max_model_tokens
        return min(self.max_model_tokens, self.cache_blocks * self.block_tokens)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]

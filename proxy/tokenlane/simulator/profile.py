"""What one simulated replica is like. Frozen; all replicas of a fleet share it.

Invariants:
- A rate of None and an interval of 0 mean "instant": then nothing waits for a timer.
- Times are simulated on the wall clock, so a replica is never faster than its real work.
"""

from typing import Literal

import msgspec

from tokenlane.errors import ConfigError


class SimulatorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A replica's model, cache, speeds and limits. The defaults are instant and unlimited.

    model: served name. adapters: LoRA adapters loaded from the start, names with commas between
    them; more at run time, by vLLM's `/v1/load_lora_adapter`.
    folder: the tokenizer's folder (None: the demo model shipped here).
    max_model_tokens: prompt and answer together.
    block_tokens, cache_blocks: KV cache geometry; cache_blocks None never evicts.
    cache_generated: full blocks of generated tokens are cached too (they are in vLLM).
    prefill_tokens_per_s: one prompt after the other; None: instant.
    token_interval_s: between two tokens of one stream; 0: instant.
    running_limit: sequences in prefill or decode; queue_limit: sequences waiting, beyond which
    requests get 503 (None: no limit).
    frontend_bytes_per_s: template and tokenize, by bytes of the request body (a token is about
    four of them); None: instant. frontend_processes: how many bodies at once.
    output_tokens: length of an answer whose request does not say.
    report_cached_tokens: vLLM's --enable-prompt-tokens-details.
    echo_request_id: vLLM's --enable-request-id-headers.
    keep_alive_s: idle connections are closed after this.
    tokenize_threads: real tokenization of long bodies happens there.
    prompt_cache_bytes: memory for prompts already tokenized, for the whole fleet.
    kv_events: publish what the cache holds over ZMQ, as vLLM does: off, maps (vLLM 0.32), or
    arrays (earlier versions).
    store_responses: vLLM's VLLM_ENABLE_RESPONSES_API_STORE: requests may go on from a response.
    execution_log: a file that gets a line for each generating request the engine took: the port,
    the request's x-request-id, and when its body was there (monotonic seconds); empty: none.
    """

    model: str = "demo"
    adapters: str = ""
    folder: str | None = None
    max_model_tokens: int = 131_072
    block_tokens: int = 16
    cache_blocks: int | None = None
    cache_generated: bool = False
    prefill_tokens_per_s: float | None = None
    token_interval_s: float = 0.0
    running_limit: int = 256
    queue_limit: int | None = None
    frontend_bytes_per_s: float | None = None
    frontend_processes: int = 1
    output_tokens: int = 16
    report_cached_tokens: bool = True
    echo_request_id: bool = False
    keep_alive_s: float = 5.0
    tokenize_threads: int = 2
    prompt_cache_bytes: int = 256 * 1024 * 1024
    kv_events: Literal["off", "maps", "arrays"] = "off"
    store_responses: bool = False
    execution_log: str = ""

    def __post_init__(self) -> None:
        counts = (
            "max_model_tokens",
            "block_tokens",
            "running_limit",
            "frontend_processes",
            "output_tokens",
            "tokenize_threads",
        )
        for name in counts:
            if getattr(self, name) < 1:
                raise ConfigError(f"simulator: {name} must be at least 1")
        for name in ("prefill_tokens_per_s", "frontend_bytes_per_s", "cache_blocks"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"simulator: {name} must be positive, or null for no limit")
        if self.token_interval_s < 0 or self.keep_alive_s <= 0:
            raise ConfigError("simulator: token_interval_s and keep_alive_s cannot be negative")

    @property
    def adapter_names(self) -> list[str]:
        """Those of `adapters`."""
        return [name.strip() for name in self.adapters.split(",") if name.strip()]

    @property
    def context_tokens(self) -> int:
        """Prompt and answer together: what the model allows and the cache can hold."""
        if self.cache_blocks is None:
            return self.max_model_tokens
        return min(self.max_model_tokens, self.cache_blocks * self.block_tokens)

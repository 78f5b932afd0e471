"""Loading and unloading LoRA adapters at run time, in vLLM's words.

Invariants:
- What is asked for is checked before anything changes; a name is loaded once.
- Blocks of an adapter that is unloaded stay in the cache until they make room.
"""

import msgspec

from tokenlane.simulator import vllm_errors
from tokenlane.simulator.http_answers import JSON, Reply
from tokenlane.simulator.replica import SimulatedReplica


class _Order(msgspec.Struct):
    lora_name: str = ""
    lora_path: str = ""


def change(replica: SimulatedReplica, body: bytes, reply: Reply, path: str) -> None:
    """Answer `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`. Raise ReplicaError."""
    try:
        order = msgspec.json.decode(body, type=_Order)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise vllm_errors.validation(str(error)) from None
    name, loading = order.lora_name, path == "/v1/load_lora_adapter"
    if not name or (loading and not order.lora_path):
        wanted = "Both 'lora_name' and 'lora_path'" if loading else "'lora_name'"
        raise vllm_errors.ReplicaError(f"{wanted} must be provided.", kind="InvalidUserInput")
    if loading and name in replica.models:
        text = f"The lora adapter '{name}' has already been loaded."
        raise vllm_errors.ReplicaError(text, kind="InvalidUserInput")
    if not loading and name not in replica.adapters:
        text = f"The lora adapter '{name}' cannot be found."
        raise vllm_errors.ReplicaError(text, status=404, kind="NotFoundError")
    if loading:
        replica.adapters[name] = order.lora_path
    else:
        del replica.adapters[name]
    done = "added" if loading else "removed"
    text = f"Success: LoRA adapter '{name}' {done} successfully."
    reply.respond(200, JSON, msgspec.json.encode(text))

"""Bodies made anew for replicas, off the loop where that takes long.

Invariants:
- What is rewritten is a short list: what the settings forbid, the model's name where the settings
  have another one for it, ids in the place of text, and a tenant's cache_salt. Whatever is not on
  it stays as the client wrote it, byte for byte.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from proxy import forward
from proxy.auth import tenant_salt
from proxy.body import Body, ChatBody, CompletionBody, OtherBody
from proxy.model import Prompt
from proxy.rules import Rules
from proxy.telemetry.stages import INSPECT, LOOP, OTHER, ROUTE

# Bodies that are rewritten faster than a thread is asked to do it: to decode and change, to take
# apart and join, to copy.
_SHORT_BODY_BYTES = 8 * 1024
_NAMED_BODY_BYTES = 128 * 1024
_COPIED_BODY_BYTES = 1024 * 1024
# A body without a prompt that we read, whose cache_salt vLLM reads all the same.
SALTED_PATHS = frozenset({"/v1/responses"})


async def with_ids(body: bytes, request: ChatBody | CompletionBody, prompt: Prompt) -> bytes:
    """The body with its ids, where they may go."""
    make = partial(forward.with_ids, body, request, prompt.sequences)
    return await _made(make, len(body) <= _SHORT_BODY_BYTES) or body


async def with_model(body: bytes, model: str) -> bytes:
    """The body with this model's name."""
    make = partial(forward.with_model, body, model)
    return await _made(make, len(body) <= _NAMED_BODY_BYTES, INSPECT) or body


async def by_rules(body: bytes, rules: Rules) -> bytes:
    """The body as the settings let it go on; raises RequestError 400."""
    made = await _made(partial(rules.apply, body), len(body) <= _SHORT_BODY_BYTES, INSPECT)
    assert made is not None
    return made


async def for_tenant(body: bytes, request: Body, path: str, tenant: str) -> bytes:
    """The body with the tenant's cache_salt, which `request` gets too: from here on its prompt
    shares nothing with equal prompts of others."""
    given: str | None = None
    if isinstance(request, OtherBody):
        if path not in SALTED_PATHS:
            return body
    else:
        given = request.cache_salt
    salt = tenant_salt(tenant, given)
    if not isinstance(request, OtherBody):
        request.cache_salt = salt
    make = partial(forward.with_salt, body, salt)
    return await _made(make, len(body) <= _COPIED_BODY_BYTES) or body


async def _made(make: Callable[[], bytes | None], short: bool, stage: int = ROUTE) -> bytes | None:
    if short:
        return make()
    LOOP.mark(OTHER)
    try:
        return await asyncio.get_running_loop().run_in_executor(None, make)
    finally:
        LOOP.mark(stage)

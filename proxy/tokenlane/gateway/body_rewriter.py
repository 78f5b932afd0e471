"""Bodies made anew for replicas, off the loop where that takes long.

Invariants:
- What is rewritten is a short list: what the settings forbid, the model's name where the settings
  have another one for it, ids in the place of text, and a tenant's cache_salt. Whatever is not on
  it stays as the client wrote it, byte for byte.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from msgspec import UNSET

from tokenlane.admission.auth import tenant_salt
from tokenlane.gateway import body_edits
from tokenlane.prompt import Prompt
from tokenlane.protocols.bodies import Body, ChatBody, CompletionBody, Kind, OtherBody
from tokenlane.protocols.field_rules import FieldRules
from tokenlane.telemetry.stalls.stages import INSPECT, LOOP, OTHER, ROUTE

# Bodies that are rewritten faster than a thread is asked to do it: to decode and change, to take
# apart and join, to copy.
_SHORT_BODY_BYTES = 8 * 1024
_NAMED_BODY_BYTES = 128 * 1024
_COPIED_BODY_BYTES = 1024 * 1024


async def with_ids(body: bytes, request: ChatBody | CompletionBody, prompt: Prompt) -> bytes:
    """The body with its ids, where they may go."""
    make = partial(body_edits.with_ids, body, request, prompt.sequences)
    return await _made(make, len(body) <= _SHORT_BODY_BYTES) or body


async def with_model(body: bytes, model: str) -> bytes:
    """The body with this model's name."""
    make = partial(body_edits.with_model, body, model)
    return await _made(make, len(body) <= _NAMED_BODY_BYTES, INSPECT) or body


async def by_rules(body: bytes, rules: FieldRules, kind: Kind) -> bytes:
    """The body as the settings let it go on; raises RequestError 400."""
    made = await _made(partial(rules.apply, body, kind), len(body) <= _SHORT_BODY_BYTES, INSPECT)
    assert made is not None
    return made


async def for_tenant(body: bytes, request: Body, tenant: str) -> bytes:
    """The body with the tenant's cache_salt, which `request` gets too: from here on its prompt
    shares nothing with equal prompts of others. Raises RequestError 400."""
    if isinstance(request, OtherBody):
        return body
    given = request.cache_salt
    salt = request.cache_salt = tenant_salt(tenant, given or None)
    if given is UNSET:
        make, inline_bytes = body_edits.with_first_salt, _COPIED_BODY_BYTES
    else:
        make, inline_bytes = body_edits.with_salt, _NAMED_BODY_BYTES
    return await _made(partial(make, body, salt), len(body) <= inline_bytes) or body


async def _made(make: Callable[[], bytes | None], short: bool, stage: int = ROUTE) -> bytes | None:
    if short:
        return make()
    LOOP.mark(OTHER)
    try:
        return await asyncio.get_running_loop().run_in_executor(None, make)
    finally:
        LOOP.mark(stage)

"""A request record in the words of the access log and of traces."""

from tokenlane.gateway.request_record import RequestRecord
from tokenlane.relay.usage import cached_tokens_of
from tokenlane.telemetry.log import prompt_prefix
from tokenlane.telemetry.log.lines import Entry

# Clients may send any method; others are named as OpenTelemetry names them.
METHODS = frozenset("GET HEAD POST PUT PATCH DELETE OPTIONS CONNECT TRACE".split())


def entry_of(record: RequestRecord, status: int, why: str, prefix_block_tokens: int = 0) -> Entry:
    """Return the log entry of a request that has ended. status: what the client got; why: it is
    written (failed, slow, sampled, traced). prefix_block_tokens: between the marks of its prompt, 0
    for none."""
    relay, tokens, decision = record.relay, record.tokens, record.decision
    usage = relay.usage if relay is not None else None
    prompt = tokens.prompt if tokens is not None else None
    first_token_s = relay.first_token_s if relay is not None else 0.0
    output_tokens = usage.completion_tokens if usage is not None else None
    if output_tokens is None and relay is not None:
        output_tokens = relay.token_events
    error_code = record.error_code
    if error_code is None and relay is not None and relay.error is not None:
        error_code = relay.error.reason
    marks, mark_tokens = b"", 0
    if prefix_block_tokens and decision is not None and decision.exact:
        query = decision.query
        step = max(prefix_block_tokens // query.block_tokens, 1)
        marks, mark_tokens = prompt_prefix.marks(query.blocks, step), step * query.block_tokens
    return Entry(
        record.ended_s,
        why,
        record.request_id,
        record.route,
        record.model,
        status,
        record.outcome,
        record.ended_s - record.started_s,
        record.stages(),
        method=record.method if record.method in METHODS else "_OTHER",
        error_code=error_code,
        ttft_s=first_token_s - record.started_s if first_token_s else None,
        replica=record.replica,
        attempts=record.attempts,
        policy=decision.policy if decision is not None else None,
        reason=decision.reason.value if decision is not None else None,
        rung=tokens.rung.value if tokens is not None else None,
        bail=tokens.reason or None if tokens is not None else None,
        prompt_tokens=prompt.tokens if prompt is not None else None,
        prompt_tokens_actual=usage.prompt_tokens if usage is not None else None,
        cached_tokens=record.cached_tokens,
        cached_tokens_actual=cached_tokens_of(usage) if usage is not None else None,
        output_tokens=output_tokens,
        cost=record.cost,
        tenant=record.tenant,
        marks=marks,
        mark_tokens=mark_tokens,
    )

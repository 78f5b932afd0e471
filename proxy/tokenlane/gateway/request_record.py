"""The record of one request, filled in as the request goes through its stages.

Invariants:
- A record belongs to one request and is handed to the recorder once, at the request's end.
- It holds no reference that leads back to it: a cycle per request is work for the garbage
  collector.
"""

from itertools import islice
from typing import Final

from tokenlane.admission.queue import Permit
from tokenlane.gateway.plan import Plan
from tokenlane.relay.response import Relay
from tokenlane.routing.decision import Decision
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.departures import OTHER
from tokenlane.telemetry.stalls.stall import InHand
from tokenlane.telemetry.tracing.trace_context import TraceContext
from tokenlane.tokens.service import Outcome

Requests = tuple[tuple[InHand, ...], int]
_SHOWN_COUNT: Final = 20


class RequestRecord:
    """One request. Times: time.monotonic() seconds at the end of each stage, 0.0 before; of several
    attempts, routed_s is the first one's and sent_s the last one's.

    outcome: ok, client_error (4xx, or a stream that says so), gateway_error, client_gone,
    upstream_error or truncated.
    error_code: of the error that the client got, where it is one of ours.
    tenant: whose request it is; empty where no key was asked for, `other` where none was good.
    cached_tokens: predicted for the replica that answered; None where ids were not known.
    cost: estimated, where the model has a price.
    plan: as far as it has come. model: as a metric label.
    replica: tried last; attempts: how many were. trace: its span, where it is recorded.
    permit: where permits are limited.
    """

    route = OTHER
    model = OTHER
    outcome = "ok"
    tenant = ""
    request_id = b""
    method = ""
    replica: str | None = None
    attempts = 0
    trace: TraceContext | None = None
    permit: Permit | None = None
    plan: Plan | None = None
    decision: Decision | None = None
    relay: Relay | None = None
    cached_tokens: int | None = None
    cost: float | None = None
    read_s = 0.0
    routed_s = 0.0
    sent_s = 0.0
    ended_s = 0.0

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s
        # No default of the class: mypyc drops None where a type has two beside it.
        self.error_code: str | int | None = None

    @property
    def tokens(self) -> Outcome | None:
        """How its ids were made."""
        return self.plan.tokens if self.plan is not None else None

    def stages(self) -> list[float]:
        """Return the seconds spent in each of families.STAGES, as far as the request came."""
        relay, plan = self.relay, self.plan
        first_byte_s = relay.first_byte_s if relay is not None else 0.0
        ends = (
            self.read_s,
            plan.inspected_s if plan is not None else 0.0,
            plan.tokens_s if plan is not None else 0.0,
            self.routed_s,
            self.sent_s,
            first_byte_s,
            self.ended_s if first_byte_s else 0.0,
        )
        seconds = []
        began_s = self.started_s
        for end_s in ends:
            if not end_s:
                break
            seconds.append(end_s - began_s)
            began_s = end_s
        return seconds

    def stage(self) -> str:
        """Return the one of families.STAGES that the request is in."""
        return families.STAGES[min(len(self.stages()), len(families.STAGES) - 1)]


def in_hand(records: dict[RequestRecord, bytes]) -> Requests:
    """Return the first few of these requests and their number; callable from any thread."""
    # In one step of the interpreter, between any two of which the loop may run; a list of the items
    # would be made in many, since the collector may look at each of them.
    now = records.copy()
    shown = islice(now.items(), _SHOWN_COUNT)
    return (
        tuple(
            InHand(request_id.decode("ascii"), record.route, record.stage())
            for record, request_id in shown
        ),
        len(now),
    )

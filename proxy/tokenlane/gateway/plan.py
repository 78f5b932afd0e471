"""What is decided about a request before a replica is chosen: its tenant, its model, the ids it is
routed by, the changes to its body.

Invariants:
- A plan belongs to one request, or one explanation, or one copy; `tokenlane.gateway.planner` fills
  it in from top to bottom, and nothing else does.
- The model and the salt in `request` are those in `body`.
"""

import copy
from collections.abc import Sequence
from typing import Final

import msgspec

from tokenlane.gateway.forwarding import Form
from tokenlane.gateway.id_trust import Claim
from tokenlane.gateway.query_builder import Field
from tokenlane.gateway.replica_body import ReplicaBody
from tokenlane.protocols.bodies import Body, OtherBody
from tokenlane.protocols.routes import Route
from tokenlane.routing.decision import Query
from tokenlane.runtime.clock import monotonic
from tokenlane.telemetry.metrics.departures import OTHER
from tokenlane.tokens.next_turn import NextTurn
from tokenlane.tokens.service import Outcome

_NO_BODY: Final = ReplicaBody(b"")
_UNREAD: Final = OtherBody()
_NO_QUERY: Final = Query(b"", 16, 0, 0)


class Plan:
    """One request's. headers: with lower-case names. Times: time.monotonic() seconds at the end of
    a stage, 0.0 before.

    named: the response that the request is about, or continues.
    alias: the name of the settings under which the model was asked for. label: the model's, for
    metrics.
    tokens: how its ids were had. claim: of these, where a replica could be asked about them.
    forwards: replicas that have proven the ids get them.
    form: what the replica got, or would get if it has proven the ids; None for unread prompts.
    shadow: the model that gets a copy.
    raw: the client's bytes, where another body may begin as they do. turn: what is new in the body,
    where it begins as a known one.
    """

    __slots__ = (
        "alias", "body", "claim", "form", "forwards", "headers", "inspected_s", "label", "model",
        "named", "path", "query", "raw", "request", "request_id", "route", "shadow", "tenant",
        "tokens", "tokens_s", "turn",
    )  # fmt: skip

    def __init__(
        self, route: Route, path: str, headers: Sequence[Field], request_id: bytes, tenant: str
    ) -> None:
        self.route = route
        self.path = path
        self.headers = headers
        self.request_id = request_id
        self.tenant = tenant
        self.body: ReplicaBody = _NO_BODY
        self.request: Body = _UNREAD
        self.named = ""
        self.alias: str | None = None
        self.model: str | None = None
        self.label = OTHER
        self.shadow: str | None = None
        self.tokens: Outcome | None = None
        self.raw = b""
        self.turn: NextTurn | None = None
        self.claim: Claim | None = None
        self.forwards = False
        self.form: Form | None = None
        self.query: Query = _NO_QUERY
        self.inspected_s = self.tokens_s = 0.0

    def rename(self, model: str) -> None:
        """Ask for this model instead."""
        self.request.model = self.model = model
        self.body = self.body.apart()
        self.body.put("model", msgspec.json.encode(model))

    def copy_for(self, model: str) -> "Plan":
        """Return a plan for a copy of the request, for another model, up to its ids."""
        made = Plan(self.route, self.path, self.headers, self.request_id, self.tenant)
        made.request, made.body = copy.copy(self.request), self.body.copy()
        made.rename(model)
        made.inspected_s = monotonic()
        return made

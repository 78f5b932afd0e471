"""What a request's model means here: the name is replaced, and whoever gets a copy is told.

Invariants:
- The body is made anew only where the name changes; every other field stays as it was.
- The answer is the replica's own: its `model` is the name that the replica goes by.
"""

from tokenlane.config.settings import ModelSettings, Settings
from tokenlane.gateway import body_rewriter
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.model_names import ModelNames
from tokenlane.gateway.query_builder import QueryBuilder
from tokenlane.gateway.recorder import Recorder
from tokenlane.gateway.request_record import RequestRecord
from tokenlane.gateway.shadow import ShadowTraffic
from tokenlane.http.exchange import Exchange
from tokenlane.protocols.bodies import Body
from tokenlane.routing.router import Router
from tokenlane.tokens.service import TokenService


class ModelResolver:
    """A worker's names and shadows. on: there are any."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        router: Router,
        tokens: TokenService,
        query_builder: QueryBuilder,
        recorder: Recorder,
    ) -> None:
        models = settings.models
        self.on = models != ModelSettings()
        self.names = ModelNames(models, settings.routing.session_headers)
        self.shadows = ShadowTraffic(
            models, fleet, router, tokens, query_builder, recorder.shadowed
        )
        self._fleet = fleet
        self._recorder = recorder
        fleet.names = tuple(self.names.models())

    async def resolve(
        self, exchange: Exchange, request: Body, body: bytes, record: RequestRecord
    ) -> bytes:
        """The body as it goes on, and `request` too, with the model that its name means; notes in
        `record` who gets a copy."""
        name, names = request.model, self.names
        if name is None:
            return body
        model, key = name, 0
        if names.needs_key(name):
            key = names.key(request, exchange.headers, exchange.request_id, record.tenant)
        if name in names:
            model = names.model(name, key, self._fleet.ready)
            self._recorder.named(name, model)
        if model != name:
            request.model = model
            body = await body_rewriter.with_model(body, model)
        if names.shadowed(model):
            key = key or names.key(request, exchange.headers, exchange.request_id, record.tenant)
            record.copy_to = names.shadow(model, key)
        return body

    def copy(self, exchange: Exchange, request: Body, body: bytes, record: RequestRecord) -> None:
        """Sends the copy that was noted, beside the request itself. body: as from `resolve`, with
        what the tenant's salt makes of it, but no ids in the place of text."""
        if record.copy_to is not None:
            self.shadows.offer(exchange, request, body, record.copy_to, record.tenant)

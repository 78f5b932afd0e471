"""What is answered here, without a replica: health, the list of models, tokens and text.

Invariants:
- Only the model's own tokenizer answers for it; where there is none, a replica does.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from proxy import answers
from proxy.body import MessagesBody
from proxy.errors import RequestError
from proxy.fleet import Fleet
from proxy.life import Life
from proxy.names import Names
from proxy.routes import Action, Route
from proxy.telemetry import families
from proxy.telemetry.stages import INSPECT, LOOP, OTHER
from proxy.tokens.fields import Unrenderable
from proxy.tokens.service import TokenService
from proxy.wire.exchange import Exchange
from proxy.wire.headers import Field

_JSON: tuple[Field, ...] = ((b"content-type", b"application/json"),)
_Asked = answers.TokenizeChat | answers.TokenizeText | answers.DetokenizeBody | MessagesBody
_READERS: dict[Action, Callable[[bytes], _Asked]] = {
    Action.TOKENIZE: answers.tokenize_request,
    Action.DETOKENIZE: answers.detokenize_request,
    Action.COUNT: answers.count_request,
}


class Local:
    """Answers from a worker's own knowledge."""

    def __init__(self, fleet: Fleet, tokens: TokenService, names: Names) -> None:
        self._names = names
        self._behind = names.models()
        self._fleet = fleet
        self._tokens = tokens
        self._created_s = int(time.time())

    def health(self, exchange: Exchange, *, draining: bool) -> None:
        """Whether requests can be served now; raises RequestError 503."""
        if self._fleet.can_serve() and not draining:
            exchange.respond(200, (), b"")
            return
        reason = "This worker is draining." if draining else "No replica is up."
        raise RequestError(503, reason, kind="server_error", code="not_ready", retry_after_s=1)

    def models(self, exchange: Exchange) -> None:
        """All that some replica serves, and the names of the settings for it."""
        answer = answers.models(self._fleet.state, self._created_s, self._behind)
        exchange.respond(200, _JSON, answer)

    async def tokens(self, exchange: Exchange, route: Route, body: bytes, life: Life) -> bool:
        """/tokenize, /detokenize and the count of a message's tokens from the model's tokenizer;
        False where only a replica knows the answer."""
        request = _READERS[route.action](body)
        named = request.model and self._names.usual(request.model)
        model = self._fleet.resolve(named)
        life.model = model if model in self._fleet.models else families.OTHER
        tokenizer = self._tokens.tokenizer(model or "")
        if tokenizer is None:
            return False
        context_tokens = self._fleet.max_model_tokens(model)
        if isinstance(request, answers.DetokenizeBody):
            make = partial(answers.detokenize, tokenizer, request)
        elif isinstance(request, MessagesBody):
            make = partial(answers.count, tokenizer, request, context_tokens)
        else:
            make = partial(answers.tokenize, tokenizer, request, context_tokens)
        LOOP.mark(OTHER)
        try:
            answer = await asyncio.get_running_loop().run_in_executor(None, make)
        except Unrenderable:
            return False
        finally:
            LOOP.mark(INSPECT)
        exchange.respond(200, _JSON, answer)
        return True

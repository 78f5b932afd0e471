"""Answers that need no replica: health, the list of models, tokens and text.

Invariants:
- Only the model's own tokenizer answers for it, and only what every replica has proven to answer
  alike; else a replica does.
- Long prompts are handled one at a time, and their answers sent one piece in a turn of the loop.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from tokenlane.errors import RequestError
from tokenlane.fleet_state import IdKind
from tokenlane.gateway import body_reader, tokenize_answers
from tokenlane.gateway.body_reader import LONG_BODY_BYTES
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.id_trust import Trust
from tokenlane.gateway.model_names import ModelNames
from tokenlane.gateway.request_record import RequestRecord
from tokenlane.http.exchange import Exchange
from tokenlane.http.headers import Field
from tokenlane.protocols.bodies import MessagesBody
from tokenlane.protocols.inspection import kinds_of
from tokenlane.protocols.routes import Action, Route, model_name
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.stalls.stages import AWAITING, INSPECT
from tokenlane.tokens.encoder_threads import EncoderExecutor
from tokenlane.tokens.job import Tokenized
from tokenlane.tokens.model_tokenizers import ModelTokenizers

_short = EncoderExecutor(2, "answers")
_long = EncoderExecutor(1, "long-answers")
# 0.3 ms.
_PIECE_BYTES = 1024 * 1024
_JSON: tuple[Field, ...] = ((b"content-type", b"application/json"),)
_Asked = tokenize_answers.Tokenize | tokenize_answers.Detokenize | MessagesBody
_READERS: dict[Action, Callable[[bytes], _Asked]] = {
    Action.TOKENIZE: tokenize_answers.tokenize_request,
    Action.DETOKENIZE: tokenize_answers.detokenize_request,
    Action.COUNT: tokenize_answers.count_request,
}


class LocalAnswers:
    """Answers what a worker can answer by itself."""

    def __init__(
        self, fleet: Fleet, tokenizers: ModelTokenizers, names: ModelNames, trust: Trust
    ) -> None:
        self._trust = trust
        self._names = names
        self._fleet = fleet
        self._tokenizers = tokenizers
        self._created_s = int(time.time())

    def health(self, exchange: Exchange, *, draining: bool) -> None:
        """Raise RequestError 503 unless requests can be served now."""
        if self._fleet.can_serve() and not draining:
            exchange.respond(200, (), b"")
            return
        reason = "This worker is draining." if draining else "No replica is up."
        raise RequestError(503, reason, kind="server_error", code="not_ready", retry_after_s=1)

    def models(self, exchange: Exchange) -> None:
        """Answer with all models that some replica serves and the settings' names for them; or with
        the one that the path names."""
        names, only = self._names.models(), model_name(exchange.path)
        answer = tokenize_answers.models(self._fleet.state, self._created_s, names, only)
        exchange.respond(200, _JSON, answer)

    async def tokens(
        self, exchange: Exchange, route: Route, body: bytes, record: RequestRecord
    ) -> bool:
        """Answer /tokenize, /detokenize and token counts of messages from the model's tokenizer.
        Return False where only a replica can answer."""
        read = partial(_READERS[route.action], body)
        is_long = len(body) > LONG_BODY_BYTES
        request = await body_reader.beside_loop(read) if is_long else read()
        named = request.model and self._names.usual(request.model)
        model = self._fleet.resolve(named, self._names)
        record.model = model if model in self._fleet.models else families.OTHER
        tokenizer = self._tokenizers.get(model or "")
        kinds = IdKind.COMPLETION.value
        if isinstance(request, tokenize_answers.Tokenize):
            kinds = kinds_of(request.asked)
        elif type(request) is MessagesBody:
            kinds = kinds_of(request)
        if tokenizer is None or not self._trust.claim(model or "", kinds).everywhere:
            return False
        context_tokens = self._fleet.max_model_tokens(model)
        if isinstance(request, tokenize_answers.Detokenize):
            make = partial(tokenize_answers.detokenize, tokenizer, request)
        elif type(request) is MessagesBody:
            make = partial(tokenize_answers.count, tokenizer, request, context_tokens)
        else:
            make = partial(tokenize_answers.tokenize, tokenizer, request, context_tokens)
        try:
            with AWAITING[INSPECT]:
                answer = await (_long if is_long else _short).run(make)
        except Exception as problem:
            if isinstance(Tokenized.failed(problem, 0.0).error, RequestError):
                raise
            return False
        await _send(exchange, answer)
        return True


async def _send(exchange: Exchange, answer: bytes) -> None:
    """Send an answer of any length."""
    if len(answer) <= _PIECE_BYTES:
        exchange.respond(200, _JSON, answer)
        return
    exchange.begin(200, _JSON, length_bytes=len(answer))
    for at in range(0, len(answer), _PIECE_BYTES):
        exchange.write(answer[at : at + _PIECE_BYTES])
        with AWAITING[INSPECT]:
            await exchange.drain()
            await asyncio.sleep(0)
    exchange.finish()

"""A replica's paths, and the switches under /sim that vLLM does not have.

Invariants:
- Nothing but RequestError (framing, from the server) leaves `handle`; every other answer is
  vLLM's.
- /sim meets no fault; a replica that refuses connections is switched through a sibling.
"""

from array import array
from collections.abc import Sequence as Row

import msgspec

from tokenlane.errors import RequestError, Unrenderable
from tokenlane.http.server import Exchange
from tokenlane.protocols.bodies import ChatFields
from tokenlane.protocols.dialects import dialect_of
from tokenlane.simulator import lora, payloads, request_bodies, vllm_errors, vllm_metrics
from tokenlane.simulator.faults import Fault
from tokenlane.simulator.http_answers import EVENT_STREAM, JSON, Reply
from tokenlane.simulator.inference import Inference
from tokenlane.simulator.replica import SimulatedReplica
from tokenlane.simulator.stats import Counts
from tokenlane.simulator.vllm_errors import ReplicaError
from tokenlane.tokens.ids import pack

_TOKENS = ("/tokenize", "/detokenize")
_LORA = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
_JSON_BODIES = frozenset(
    "/v1/chat/completions /v1/completions /v1/embeddings /v1/messages /v1/messages/count_tokens "
    "/v1/responses".split()
).union(_TOKENS, _LORA)
_METHODS = {
    **dict.fromkeys(_JSON_BODIES, ("POST",)),
    **dict.fromkeys(("/v1/models", "/health", "/version", "/load", "/metrics"), ("GET",)),
    "/ping": ("GET", "POST"),
    "/reset_prefix_cache": ("POST",),
    "/kv_event_sources": ("GET",),
    "/sim/fault": ("GET", "POST", "DELETE"),
    "/sim/stats": ("GET",),
}


_RESPONSE = "/v1/responses/"


def _response_methods(path: str) -> tuple[str, ...] | None:
    """Return the methods of a path that names a response; None for any other."""
    _, slash, verb = path.removeprefix(_RESPONSE).partition("/")
    if not path.startswith(_RESPONSE) or (slash and verb != "cancel"):
        return None
    return ("POST",) if slash else ("GET",)


class _FaultOrder(Fault, frozen=True, kw_only=True):
    """A fault, and the replica that gets it (None: this one)."""

    replica: int | None = None


class Stats(Counts, kw_only=True):
    """A replica's counts since it started, and what it has now."""

    url: str
    in_flight: int
    running: int
    waiting: int
    cached_blocks: int
    evicted_blocks: int


def stats(replica: SimulatedReplica) -> Stats:
    """As they are now."""
    engine = replica.drive.engine
    return Stats(
        **msgspec.structs.asdict(engine.stats.counts),
        url=replica.url,
        in_flight=replica.in_flight,
        running=engine.running,
        waiting=engine.waiting,
        cached_blocks=len(engine.cache),
        evicted_blocks=engine.cache.evicted_blocks,
    )


class Endpoints:
    """The endpoints of one replica. siblings: the fleet, this replica included."""

    def __init__(self, replica: SimulatedReplica, siblings: Row[SimulatedReplica]) -> None:
        self._replica = replica
        self._siblings = siblings
        self._service = Inference(replica)
        lacked = replica.settings.lacked
        self._methods = {path: methods for path, methods in _METHODS.items() if path not in lacked}

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request."""
        echo = exchange.request_id if self._replica.settings.echo_request_id else None
        reply = Reply(exchange, echo)
        path = exchange.path
        try:
            if path.startswith("/sim/"):
                await self._simulator(exchange, reply)
                return
            fault = self._replica.faults.take(path)
            if fault is not None and await self._fail(exchange, reply, fault):
                return
            methods = self._methods.get(path) or _response_methods(path)
            if methods is None:
                reply.respond(404, JSON, vllm_errors.detail("Not Found"))
            elif exchange.method not in methods:
                allow = (b"allow", ", ".join(methods).encode())
                reply.respond(405, JSON, vllm_errors.detail("Method Not Allowed"), allow)
            elif path.startswith(_RESPONSE):
                await self._response(exchange, reply)
            elif path in _JSON_BODIES:
                await self._post(exchange, reply, fault)
            else:
                self._get(path, reply)
        except ReplicaError as error:
            if reply.begun:
                reply.die()
            else:
                reply.respond(error.status, JSON, error.body(dialect_of(path)))

    async def _fail(self, exchange: Exchange, reply: Reply, fault: Fault) -> bool:
        """Apply the faults that come before any answer; False: the fault comes later."""
        if fault.kind not in ("hang", "close", "garbage", "status"):
            return False
        await exchange.read_body()
        if fault.kind == "hang":
            await self._replica.never()
        elif fault.kind == "close":
            reply.die(reset=fault.reset)
        elif fault.kind == "garbage":
            reply.garbage()
        else:
            raise vllm_errors.made(fault.status, fault.message)
        return True

    async def _post(self, exchange: Exchange, reply: Reply, fault: Fault | None) -> None:
        kind = (exchange.header(b"content-type") or b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            await exchange.read_body()
            raise vllm_errors.validation(
                "Unsupported Media Type: Only 'application/json' is allowed"
            )
        path = exchange.path
        if path in _TOKENS:
            body = await exchange.read_body()
            decoded = request_bodies.decode(body, self._replica.models)
            told = self._ids(body, decoded) if path == "/tokenize" else self._text(decoded)
            reply.respond(200, JSON, told)
        elif path in _LORA:
            lora.change(self._replica, await exchange.read_body(), reply, path)
        else:
            self._replica.in_flight += 1
            try:
                if path == "/v1/embeddings":
                    await self._service.embed(exchange, reply)
                elif path == "/v1/messages/count_tokens":
                    await self._service.count(exchange, reply)
                else:
                    await self._service.generate(exchange, reply, fault)
            finally:
                self._replica.in_flight -= 1

    async def _response(self, exchange: Exchange, reply: Reply) -> None:
        """Answer a request about a stored response. None is made in the background: none can be
        cancelled, or streamed again (vLLM notices the latter when it has begun to answer)."""
        await exchange.read_body()
        name, _, cancel = exchange.path.removeprefix(_RESPONSE).partition("/")
        answer = self._replica.stored.answer(name)
        if cancel:
            raise vllm_errors.not_cancelled()
        if "stream=true" in exchange.query.lower().split("&"):
            reply.begin(EVENT_STREAM)
            reply.die()
            return
        reply.respond(200, JSON, answer)

    def _get(self, path: str, reply: Reply) -> None:
        """Answer a GET."""
        replica, settings = self._replica, self._replica.settings
        if path in ("/health", "/ping"):
            ill = replica.faults.active("unhealthy") is not None
            reply.respond(503 if ill else 200, None, b"")
        elif path == "/version":
            reply.respond(200, JSON, b'{"version":"%b"}' % payloads.VERSION.encode())
        elif path == "/load":
            reply.respond(200, JSON, b'{"server_load":%d}' % replica.in_flight)
        elif path == "/v1/models":
            created = int(replica.drive.started_s)
            most = None if "max_model_len" in settings.lacked else settings.context_tokens
            model = settings.model
            root = settings.folder or model  # as vLLM: the name it was told to load
            listed = payloads.models(model, root, created, most, replica.adapters)
            reply.respond(200, JSON, listed)
        elif path == "/metrics":
            drive = replica.drive
            content_type = (b"content-type", vllm_metrics.CONTENT_TYPE)
            reply.respond(200, content_type, vllm_metrics.exposition(drive.engine, drive.started_s))
        elif path == "/kv_event_sources":
            publisher = replica.publisher
            sources = {} if publisher is None else {"0": publisher.source()}
            reply.respond(200, JSON, msgspec.json.encode(sources))
        else:
            cleared = replica.drive.clear_cache()
            reply.respond(200, JSON, b'{"success":%b}' % (b"true" if cleared else b"false"))

    def _ids(self, body: bytes, decoded: request_bodies.Body) -> bytes:
        """Return the answer to a request for a prompt's ids."""
        tokenizer = self._replica.prompts.tokenizer
        special = decoded.add_special_tokens
        try:
            if memoryview(decoded.messages).nbytes:
                ids = tokenizer.chat_ids(msgspec.json.decode(body, type=ChatFields))
            else:
                text = msgspec.json.decode(
                    request_bodies.required(decoded.prompt, "prompt"), type=str
                )
                ids = tokenizer.encode(text, add_special_tokens=special is not False)
        except RequestError as error:
            raise vllm_errors.from_tokens(error) from None
        except msgspec.ValidationError:
            raise vllm_errors.validation("Input should be a valid string", "body.prompt") from None
        except Unrenderable as error:
            model = self._replica.settings.model
            raise vllm_errors.unrenderable(model, error.reason) from None
        numbers = array("I", ids).tolist()
        texts = None
        if decoded.return_token_strs:
            texts = tokenizer.encoder.token_strings(ids)
        return payloads.tokens(numbers, self._replica.settings.context_tokens, texts)

    def _text(self, decoded: request_bodies.Body) -> bytes:
        """Return the answer to a request for the text of ids."""
        try:
            numbers = msgspec.json.decode(
                request_bodies.required(decoded.tokens, "tokens"), type=list[int]
            )
            text = self._replica.prompts.tokenizer.decode(pack(numbers))
        except (msgspec.ValidationError, OverflowError):
            raise vllm_errors.validation("Input should be a valid integer", "body.tokens") from None
        return msgspec.json.encode({"prompt": text})

    async def _simulator(self, exchange: Exchange, reply: Reply) -> None:
        """Answer a request to the switches."""
        body = await exchange.read_body()
        if exchange.method not in _METHODS.get(exchange.path, ()):
            raise vllm_errors.made(404, "no such switch")
        if exchange.path == "/sim/stats":
            reply.respond(200, JSON, msgspec.json.encode(stats(self._replica)))
            return
        replica = self._replica
        if exchange.method == "POST":
            try:
                order = msgspec.json.decode(body, type=_FaultOrder)
            except msgspec.DecodeError as error:
                raise vllm_errors.validation(str(error)) from None
            replica = self._sibling(order.replica)
            # Answered first: the fault may take this very connection away.
            reply.respond(200, JSON, _listed([order]))
            await replica.set_fault(order)
            return
        if exchange.method == "DELETE":
            for one in self._siblings:
                one.clear_fault()
        reply.respond(200, JSON, _listed(replica.faults.listed()))

    def _sibling(self, index: int | None) -> SimulatedReplica:
        if index is None:
            return self._replica
        if not 0 <= index < len(self._siblings):
            raise vllm_errors.validation("no such replica", "replica")
        return self._siblings[index]


def _listed(faults: Row[Fault]) -> bytes:
    return msgspec.json.encode({"faults": faults})

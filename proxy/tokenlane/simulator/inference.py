"""What a replica computes: chats, completions, messages, responses, embeddings.

Invariants:
- A request that ends, however it ends, leaves nothing in the engine.
- The front end's clock starts when the body is there, whatever the real tokenization takes.
"""

import contextlib
import itertools
import time
from collections.abc import AsyncIterator

from tokenlane.http.server import Exchange
from tokenlane.protocols.dialects import Dialect, dialect_of
from tokenlane.simulator import dialect_payloads, payloads, request_bodies
from tokenlane.simulator.dialect_payloads import MessageShapes, ResponseShapes
from tokenlane.simulator.engine import Sequence
from tokenlane.simulator.faults import Fault
from tokenlane.simulator.generated_answer import GeneratedAnswer
from tokenlane.simulator.http_answers import JSON, Reply
from tokenlane.simulator.payloads import Shapes
from tokenlane.simulator.prompts import Job, PromptPlan, has_text
from tokenlane.simulator.replica import SimulatedReplica

_VECTOR_SIZE = 8


class Inference:
    """The inference of one replica."""

    def __init__(self, replica: SimulatedReplica) -> None:
        self._replica = replica
        self._settings = replica.settings
        self._prompts = replica.prompts
        self._ids = itertools.count(1)

    async def generate(self, exchange: Exchange, reply: Reply, fault: Fault | None) -> None:
        """Serve a chat, a completion, a message or a response, from its body to the end of its
        answer."""
        body = await exchange.read_body()
        read_s = time.monotonic()
        responses = dialect_of(exchange.path) is Dialect.RESPONSES
        if responses:
            body = self._replica.stored.whole(body)
        job, ready_s = await self._tokenize(exchange.path, body)
        if not self._replica.serving.is_set():
            await self._replica.serving.wait()
            fault = Fault("abort")
        shapes = self._shapes(exchange, job)
        report_cached = self._settings.report_cached_tokens or job.dialect is Dialect.RESPONSES
        generation = GeneratedAnswer(reply, job, shapes, fault, report_cached=report_cached)
        aborted_at = fault.after_chunks if fault is not None and fault.kind == "abort" else None
        every_token = bool(job.body.stream)
        for plan in job.plans:
            tokens, finish = plan.tokens, plan.finish
            if aborted_at is not None:
                tokens, finish = max(1, min(tokens, aborted_at)), "abort"
            sequence = Sequence(
                plan.prompt.tokens,
                plan.prompt.blocks,
                tokens,
                finish=finish,
                every_token=every_token,
                generated_blocks=plan.generated_blocks if finish != "abort" else (),
                ids=self._cached_ids(plan),
                salt=job.body.cache_salt or "",
                adapter=self._prompts.adapter(job.body),
            )
            generation.add(plan.prompt, plan.answer, sequence, self._prompts.table.quoted)
        if aborted_at == 0:
            generation.answer()
            return
        executions = self._replica.executions
        if executions is not None:
            request_id = exchange.header(b"x-request-id") or b"-"
            executions.taken(self._replica.port, request_id, read_s)
        async with self._computed(generation, ready_s):
            if responses:
                self._replica.stored.keep(shapes.id, body, generation.text, generation.whole())
            generation.answer()

    @contextlib.asynccontextmanager
    async def _computed(self, generation: GeneratedAnswer, ready_s: float) -> AsyncIterator[None]:
        """Have the engine run the sequences of an answer: the body is entered when they ended."""
        drive = self._replica.drive
        try:
            drive.submit(generation.sequences, ready_s)
            await generation.ended()
            yield
        finally:
            drive.abort(generation.sequences)

    async def count(self, exchange: Exchange, reply: Reply) -> None:
        """Count the tokens of a message's prompt, which uses the front end alone."""
        job, _ = await self._tokenize(exchange.path, await exchange.read_body())
        reply.respond(200, JSON, dialect_payloads.counted(job.prompts[0].tokens))

    def _shapes(self, exchange: Exchange, job: Job) -> Shapes:
        """Return how the answer is written."""
        model, created = job.body.model or self._settings.model, int(time.time())
        if job.dialect is Dialect.RESPONSES:
            name = job.body.request_id or "resp_" + self._new_id()
            return ResponseShapes(name, created, model, job.body, job.plans[0].tokens)
        name = self._request_id(exchange, job)
        if job.dialect is Dialect.MESSAGES:
            return MessageShapes("chatcmpl-" + name, model, job.prompts[0].tokens)
        chat = exchange.path == "/v1/chat/completions"
        name = ("chatcmpl-" if chat else "cmpl-") + name
        says_usage = "usage" not in self._settings.lacked
        return Shapes(chat=chat, id=name, created=created, model=model, says_usage=says_usage)

    async def embed(self, exchange: Exchange, reply: Reply) -> None:
        """Answer with vectors that depend on the ids alone. It uses the front end and the
        prefill."""
        body = await exchange.read_body()
        job, ready_s = await self._tokenize(exchange.path, body)
        name = self._request_id(exchange, job)
        shapes = Shapes(chat=False, id=name, created=int(time.time()), model=self._settings.model)
        generation = GeneratedAnswer(reply, job, shapes, None, report_cached=False)
        answer = self._prompts.table.answer(0, 0, 1)
        for prompt in job.prompts:
            sequence = Sequence(
                prompt.tokens, prompt.blocks, 1, ids=prompt.ids, salt=job.body.cache_salt or ""
            )
            generation.add(prompt, answer, sequence, [])
        async with self._computed(generation, ready_s):
            size = job.body.dimensions or _VECTOR_SIZE
            vectors = [_vector(prompt.fingerprint, size) for prompt in job.prompts]
            tokens = sum(prompt.tokens for prompt in job.prompts)
            answered = payloads.embeddings(name, shapes.created, shapes.model, vectors, tokens)
            reply.respond(200, JSON, answered)

    async def _tokenize(self, path: str, body: bytes) -> tuple[Job, float]:
        """Return the job, and when the simulated front end is through with it."""
        now = time.monotonic()
        front = self._replica.drive.front
        job = self._prompts.known(path, body)
        if job is not None:
            request_bodies.check_model(job.body, self._replica.models)
            return job, front.enter(now, len(body)) if job.from_text else now
        decoded = request_bodies.decode(body, self._replica.models, dialect_of(path))
        ready_s = front.enter(now, len(body)) if has_text(path, decoded) else now
        return await self._prompts.make(path, body, decoded), ready_s

    def _cached_ids(self, plan: PromptPlan) -> bytes:
        """Return packed ids that the plan's blocks are made of."""
        if not plan.generated_blocks:
            return plan.prompt.ids
        return plan.prompt.ids + plan.answer.packed(plan.tokens - 1)

    def _request_id(self, exchange: Exchange, job: Job) -> str:
        given = exchange.header(b"x-request-id")
        if given is not None:
            return given.decode("latin-1")
        return job.body.request_id or self._new_id()

    def _new_id(self) -> str:
        return f"{self._replica.port:04x}{next(self._ids):012x}"


def _vector(fingerprint: int, size: int) -> list[float]:
    """Return numbers in [-1, 1) from the fingerprint's bits."""
    values = []
    for _ in range(size):
        fingerprint = (fingerprint * 6364136223846793005 + 1442695040888963407) % 2**64
        values.append((fingerprint >> 40) / 2**23 - 1.0)
    return values

"""One generating request: its sequences, and its answer on the wire.

Invariants:
- Streams are written from the engine's wake-up, without a task; the request's own task only
  waits for the end. Every token is one event and one HTTP chunk, as uvicorn sends them.
- The order is vLLM's: head when the request is admitted, the role events with the first token of
  any choice, one event per token, what its dialect closes with (of a chat usage and [DONE]).
- A slow reader does not slow the engine (as in vLLM); what is buffered for it is bounded by the
  length of its answer.
"""

import asyncio

import msgspec

from tokenlane.protocols.dialects import Dialect
from tokenlane.simulator import vllm_errors
from tokenlane.simulator.engine import Sequence
from tokenlane.simulator.faults import Fault
from tokenlane.simulator.http_answers import EVENT_STREAM, JSON, Reply
from tokenlane.simulator.payloads import ChoicePayload, Shapes, Usage, counted
from tokenlane.simulator.prompts import Job, SimulatedPrompt
from tokenlane.simulator.text import AnswerText

_CUTS = ("die-mid-stream", "stall", "error-event")


class _Choice(msgspec.Struct, eq=False):
    """One sequence and what of it has been sent. Owner of its sequence."""

    generation: "GeneratedAnswer"
    index: int
    prompt: SimulatedPrompt
    answer: AnswerText
    sequence: Sequence
    sent: int = 0
    before: bytes = b""
    after: bytes = b""

    def changed(self, sequence: Sequence) -> None:
        """Called by the engine."""
        self.generation.changed(self, sequence)


class GeneratedAnswer:
    """reply: where the answer goes. fault: what goes wrong with it, if anything."""

    def __init__(
        self, reply: Reply, job: Job, shapes: Shapes, fault: Fault | None, *, report_cached: bool
    ) -> None:
        body = job.body
        options = body.stream_options
        self.choices: list[_Choice] = []
        self._reply = reply
        self._job = job
        self._shapes = shapes
        self._fault = fault if fault is not None and fault.kind in _CUTS else None
        self._report_cached = report_cached
        self._stream = bool(body.stream)
        self._ids = bool(body.return_token_ids)
        self._usage = bool(options and options.include_usage) or job.dialect is not Dialect.CHAT
        self._continuous = self._usage and bool(options and options.continuous_usage_stats)
        self._plain = shapes.framed and not (self._ids or self._continuous)
        self._quoted: list[bytes] = []
        self._pending = 0
        self._roles = False
        self._tokens_sent = 0
        self._rejected = False
        self._stopped = False
        self._done = asyncio.get_running_loop().create_future()

    def add(
        self, prompt: SimulatedPrompt, answer: AnswerText, sequence: Sequence, quoted: list[bytes]
    ) -> None:
        """Add a choice."""
        choice = _Choice(self, len(self.choices), prompt, answer, sequence)
        sequence.owner = choice
        self._quoted = quoted
        self.choices.append(choice)
        self._pending += 1

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences of all choices."""
        return [choice.sequence for choice in self.choices]

    @property
    def text(self) -> str:
        """The text of the first choice so far."""
        return self.choices[0].answer.text(self.choices[0].sequence.produced)

    async def ended(self) -> None:
        """Wait for the sequences. Raise ReplicaError."""
        if self._pending or self._stopped:
            await self._done
        if self._rejected:
            raise vllm_errors.busy()

    def answer(self) -> None:
        """End the answer, or send all of it."""
        if self._stream:
            if not self._reply.begun:
                self._begin()
            self._end_stream()
        else:
            self._whole()

    def changed(self, choice: _Choice, sequence: Sequence) -> None:
        """Note that a sequence was queued, produced tokens or ended."""
        if sequence.finish == "rejected":
            # One choice of several that is refused refuses the request.
            self._rejected = True
            self._over()
        elif self._stream and not self._stopped:
            self._advance(choice, sequence)
        if sequence.done:
            self._pending -= 1
            if not self._pending and not self._stopped:
                self._over()

    def _over(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _advance(self, choice: _Choice, sequence: Sequence) -> None:
        """Send the new tokens of a choice."""
        reply = self._reply
        if not reply.begun:
            self._begin()
        if not sequence.produced:
            return
        if not self._roles:
            self._send_roles()
        end = sequence.produced - 1 if sequence.done else sequence.produced
        if self._plain and self._fault is None:
            quoted, indexes = self._quoted, choice.answer.indexes
            before, after = choice.before, choice.after
            if choice.sent < end and not before:
                before, after = self._shapes.frame(choice.index)
                choice.before, choice.after = before, after
            for index in indexes[choice.sent : end]:
                reply.write(before + quoted[index] + after)
            choice.sent = end
        else:
            while choice.sent < end and not self._stopped:
                self._send_token(choice, None)
        if sequence.done and choice.sent < sequence.produced and not self._stopped:
            self._send_token(choice, sequence.finish)

    def _begin(self) -> None:
        self._reply.begin(EVENT_STREAM)
        for event in self._shapes.head():
            self._write(event)

    def _send_roles(self) -> None:
        self._roles = True
        if not self._shapes.chat:
            return
        prompt = self._job.prompts[0]
        usage = self._so_far(prompt.tokens, 0)
        for choice in self.choices:
            ids = prompt.id_list if self._ids else None
            for event in self._shapes.role(choice.index, ids, usage):
                self._write(event)

    def _send_token(self, choice: _Choice, finish: str | None) -> None:
        """Send one token's event; finish: it is the last."""
        fault = self._fault
        if fault and fault.after_bytes is None and self._tokens_sent >= fault.after_chunks:
            self._cut(fault)
            return
        first, position = choice.sent == 0, choice.sent
        choice.sent += 1
        self._tokens_sent += 1
        self._write(
            self._shapes.piece(
                choice.index,
                choice.answer.piece(position),
                finish=finish,
                ids=choice.answer.ids(position, position + 1) if self._ids else None,
                prompt_ids=choice.prompt.id_list if self._ids and first else None,
                usage=self._so_far(choice.prompt.tokens, choice.sent),
                fingerprint=finish is not None and not self._usage,
            )
        )

    def _so_far(self, prompt_tokens: int, output_tokens: int) -> Usage | None:
        """Return the usage of an event with text, where each has one."""
        more = {"completion_tokens_details": None} if self._shapes.chat else {}
        return counted(prompt_tokens, output_tokens, **more) if self._continuous else None

    def _end_stream(self) -> None:
        fault = self._fault
        if not self._roles and not self._stopped:
            self._send_roles()
        if fault is not None and fault.after_bytes is None:
            self._cut(fault)
            return
        usage = self._total(full=False) if self._usage else None
        chat = self._job.dialect is Dialect.CHAT  # it has sent everything already
        for event in self._shapes.closing([] if chat else self._ended_choices(), usage):
            self._write(event)
        if fault is not None:
            self._cut(fault)
        elif not self._stopped:
            self._reply.finish()

    def _write(self, event: bytes) -> None:
        """Write an event; a fault that counts bytes may cut it."""
        fault = self._fault
        if self._stopped:
            return
        if fault is not None and fault.after_bytes is not None:
            room = fault.after_bytes - self._reply.sent_bytes
            if len(event) > room:
                self._reply.write(event[:room])
                self._cut(fault)
                return
        self._reply.write(event)

    def _cut(self, fault: Fault) -> None:
        """Cut the answer. The remaining sequences end with the connection."""
        if self._stopped:
            return
        self._stopped = True
        if fault.kind == "die-mid-stream":
            self._reply.die(reset=fault.reset)
        elif fault.kind == "error-event":
            told = self._shapes.failure(vllm_errors.engine_dead().message)
            for event in told:
                self._reply.write(event)
            self._reply.finish() if told else self._reply.die()
        if fault.kind != "stall":
            self._over()

    def whole(self) -> bytes:
        """Return the answer as one that is not a stream has it."""
        choices = self._ended_choices()
        prompt_ids = self._job.prompts[0].id_list if self._ids and self._shapes.chat else None
        return self._shapes.whole(choices, self._total(full=True), prompt_ids)

    def _whole(self) -> None:
        body = self.whole()
        fault = self._fault
        if fault is None:
            self._reply.respond(200, JSON, body)
        elif fault.kind == "error-event":
            raise vllm_errors.engine_dead()
        else:
            cut = len(body) // 2 if fault.after_bytes is None else fault.after_bytes
            self._reply.begin(JSON, length_bytes=len(body))
            self._reply.write(body[: min(cut, len(body) - 1)])
            if fault.kind == "die-mid-stream":
                self._reply.die(reset=fault.reset)

    def _ended_choices(self) -> list[ChoicePayload]:
        return [
            ChoicePayload(
                choice.index,
                choice.answer.text(choice.sequence.produced),
                choice.sequence.finish,
                choice.answer.ids(0, choice.sequence.produced) if self._ids else None,
                choice.prompt.id_list if self._ids and not self._shapes.chat else None,
            )
            for choice in self.choices
        ]

    def _total(self, *, full: bool) -> Usage:
        """Return the usage of all choices. full: an answer that is not a stream names every
        field."""
        chat = self._shapes.chat
        usage = counted(
            sum(prompt.tokens for prompt in self._job.prompts),
            sum(choice.sequence.produced for choice in self.choices),
        )
        if full:
            usage |= {"prompt_tokens_details": None, "completion_tokens_details": None}
        if self._report_cached:
            # vLLM reports one prompt of several: a stream its first, a whole answer its last.
            shown = self.choices[-1 if full and not chat else 0].sequence
            details: dict[str, int | None] = {"cached_tokens": shown.cached_tokens}
            if chat or full:
                details["created_cache_tokens"] = shown.created_cache_tokens if chat else None
            if full:
                details["multimodal_tokens"] = None
            usage["prompt_tokens_details"] = details
        return usage

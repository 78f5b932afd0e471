"""Bodies to prompts: real ids from the real tokenizer, each body once for the whole fleet.

Invariants:
- A body seen before costs a lookup; the cache is bounded by bytes.
- Long bodies are tokenized on threads, so that one replica's long prompt does not disturb the
  clocks of the others. Short ones are done where they stand: a thread would cost more.
"""

import asyncio
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

import cachetools
import msgspec
import xxhash

from tokenlane.errors import RequestError, Unrenderable
from tokenlane.protocols.bodies import ChatFields, CompletionFields, MessagesFields, ResponsesFields
from tokenlane.protocols.dialects import Dialect, dialect_of
from tokenlane.simulator import request_bodies, vllm_errors
from tokenlane.simulator.prefix_cache import Blocks, chain
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.request_bodies import Body
from tokenlane.simulator.text import AnswerText, TokenTable
from tokenlane.tokens.ids import pack
from tokenlane.tokens.tokenizer import Tokenizer

_CHAT = "/v1/chat/completions"
_COUNT = "/v1/messages/count_tokens"
_EMBEDDINGS = "/v1/embeddings"
_INLINE_LIMIT_BYTES = 8 * 1024
_COMPLETION_TOKENS = 16


class SimulatedPrompt(msgspec.Struct, frozen=True, gc=False):
    """ids: packed uint32. fingerprint: what answers are made of."""

    ids: bytes
    blocks: Blocks
    fingerprint: int

    @property
    def tokens(self) -> int:
        """Length."""
        return len(self.ids) // 4

    @property
    def id_list(self) -> list[int]:
        """The ids as JSON has them."""
        return array("I", self.ids).tolist()


class PromptPlan(msgspec.Struct, frozen=True, gc=False):
    """One choice: what will be generated from a prompt, and why it will end.

    generated_blocks: hashes of the full blocks after the prompt's, where they are cached.
    """

    prompt: SimulatedPrompt
    answer: AnswerText
    tokens: int
    finish: str
    generated_blocks: Blocks


class Job(msgspec.Struct, frozen=True):
    """A decoded body, its prompts, and each prompt's choices. from_text: the prompts go through
    the front end."""

    dialect: Dialect
    body: Body
    prompts: tuple[SimulatedPrompt, ...]
    plans: tuple[PromptPlan, ...]
    from_text: bool
    size_bytes: int


class Prompts:
    """Shared by the replicas of a fleet, on one loop."""

    def __init__(self, settings: SimulatorSettings, tokenizer: Tokenizer) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.table = TokenTable(self.tokenizer)
        self._jobs: cachetools.LRUCache[tuple[str, bytes], Job] = cachetools.LRUCache(
            settings.prompt_cache_bytes, getsizeof=attrgetter("size_bytes")
        )
        self._threads = ThreadPoolExecutor(settings.tokenize_threads, "simulator-tokenize")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def known(self, path: str, body: bytes) -> Job | None:
        """Return the job of a body seen before."""
        return self._jobs.get((path, body))

    def adapter(self, body: Body) -> str:
        """Return the LoRA adapter that a request names; empty for the model itself."""
        return "" if body.model in (None, "", self.settings.model) else str(body.model)

    async def make(self, path: str, body: bytes, decoded: Body) -> Job:
        """Tokenize. Raise ReplicaError."""
        if len(body) <= _INLINE_LIMIT_BYTES:
            job = self._make(path, body, decoded)
        else:
            loop = asyncio.get_running_loop()
            job = await loop.run_in_executor(self._threads, self._make, path, body, decoded)
        if job.size_bytes <= self.settings.prompt_cache_bytes // 4:
            self._jobs[path, body] = job
        return job

    def _make(self, path: str, body: bytes, decoded: Body) -> Job:
        try:
            sequences = self._sequences(path, body, decoded)
        except RequestError as error:
            raise vllm_errors.from_tokens(error) from None
        except Unrenderable as error:
            raise vllm_errors.unrenderable(self.settings.model, error.reason) from None
        text = has_text(path, decoded)
        if not text:
            self._check_ids(sequences)
        salt = self._salt(decoded)
        prompts = tuple(self._prompt(ids, salt, cut=text) for ids in sequences)
        plans = () if path in (_EMBEDDINGS, _COUNT) else tuple(self._plans(path, decoded, prompts))
        memory = sum(len(one.ids) + 56 * len(one.blocks) + 256 for one in prompts)
        memory += sum(16 * one.tokens + 56 * len(one.generated_blocks) + 256 for one in plans)
        return Job(dialect_of(path), decoded, prompts, plans, text, 2 * len(body) + memory + 1024)

    def _plans(
        self, path: str, body: Body, prompts: tuple[SimulatedPrompt, ...]
    ) -> Iterator[PromptPlan]:
        """Plan each prompt n times."""
        for position, prompt in enumerate(prompts):
            tokens, finish = self._length(path, body, prompt)
            for copy in range(body.n or 1):
                seed = (body.seed or 0) * 8191 + position * 127 + copy
                answer = self.table.answer(prompt.fingerprint, seed, tokens)
                blocks = self._generated(prompt, answer, tokens, self._salt(body))
                yield PromptPlan(prompt, answer, tokens, finish, blocks)

    def _length(self, path: str, body: Body, prompt: SimulatedPrompt) -> tuple[int, str]:
        """Return tokens of the answer and why it ends. An answer asked for by length has that
        length: a simulated model never ends early."""
        asked, name = body.max_tokens, "max_tokens"
        dialect = dialect_of(path)
        limit = self.settings.context_tokens
        room = limit - prompt.tokens
        if dialect is Dialect.MESSAGES:
            name = "max_completion_tokens"
        elif dialect is Dialect.RESPONSES:
            asked, name = body.max_output_tokens, "max_output_tokens"
            if room < 1:
                raise vllm_errors.no_room(limit, prompt.tokens)
        elif path == _CHAT:
            asked = asked if body.max_completion_tokens is None else body.max_completion_tokens
        elif asked is None:
            asked = _COMPLETION_TOKENS
        if room < 1 or (asked is not None and asked < 1):
            raise vllm_errors.no_output(0 if asked is None else min(asked, room))
        if asked is not None and asked > limit:
            raise vllm_errors.too_much_output(limit, asked, name)
        if asked is None:
            return min(self.settings.output_tokens, room), "stop"
        return min(asked, room), "length"

    def _salt(self, body: Body) -> str:
        """Return the salt that keeps its blocks apart: vLLM's hashes cover adapters too."""
        adapter, salt = self.adapter(body), body.cache_salt or ""
        return f"{adapter}\0{salt}" if adapter else salt

    def _generated(
        self, prompt: SimulatedPrompt, answer: AnswerText, tokens: int, salt: str
    ) -> Blocks:
        """Return the ids that end up in the cache: the last token of an answer is never fed
        back."""
        if not self.settings.cache_generated:
            return ()
        width = self.settings.block_tokens
        tail = prompt.ids[len(prompt.blocks) * width * 4 :] + answer.packed(tokens - 1)
        parent = prompt.blocks[-1] if prompt.blocks else b""
        return chain(tail, width, salt, parent)

    def _sequences(self, path: str, body: bytes, decoded: Body) -> tuple[bytes, ...]:
        if path == _CHAT:
            request_bodies.check_messages(decoded.messages)
            given = forwarded_ids(decoded)
            if given is not None:
                return (given,)
            return (self.tokenizer.chat_ids(msgspec.json.decode(body, type=ChatFields)),)
        dialect = dialect_of(path)
        if dialect is Dialect.MESSAGES:
            request_bodies.check_messages(decoded.messages)
            if path != _COUNT:
                request_bodies.check_output(decoded)
            return (self.tokenizer.chat_ids(msgspec.json.decode(body, type=MessagesFields)),)
        if dialect is Dialect.RESPONSES:
            request_bodies.check_input(decoded.input)
            return (self.tokenizer.chat_ids(msgspec.json.decode(body, type=ResponsesFields)),)
        name = "input" if path == _EMBEDDINGS else "prompt"
        fields = msgspec.json.decode(body, type=CompletionFields)
        if name == "input":
            fields.prompt = request_bodies.required(decoded.input, name)
        request_bodies.check_prompt(fields.prompt)
        return self.tokenizer.completion_ids(fields)

    def _check_ids(self, sequences: tuple[bytes, ...]) -> None:
        """Check that ids from the client are in the vocabulary."""
        for ids in sequences:
            highest = max(array("I", ids), default=0)
            if not self.tokenizer.encoder.token_strings(pack([highest]))[0]:
                raise vllm_errors.ReplicaError(f"Token id {highest} is out of vocabulary")

    def _prompt(self, ids: bytes, salt: str, *, cut: bool) -> SimulatedPrompt:
        tokens = len(ids) // 4
        if not tokens:
            raise vllm_errors.ReplicaError("The decoder prompt cannot be empty")
        if tokens > self.settings.context_tokens:
            raise vllm_errors.too_long(self.settings.context_tokens, tokens, cut=cut)
        blocks = chain(ids, self.settings.block_tokens, salt)
        return SimulatedPrompt(ids, blocks, xxhash.xxh3_64_intdigest(ids))


def forwarded_ids(decoded: Body) -> bytes | None:
    """Return ids that came with a chat request, in the place vLLM takes them from."""
    given = (decoded.kv_transfer_params or {}).get("prompt_token_ids")
    if isinstance(given, list) and given and all(type(one) is int for one in given):
        try:
            return pack(given)
        except OverflowError:
            raise vllm_errors.ReplicaError("Token id is out of vocabulary") from None
    return None


def has_text(path: str, decoded: Body) -> bool:
    """Return whether the front end has work with this request."""
    if path == _CHAT or dialect_of(path) is not Dialect.CHAT:
        return forwarded_ids(decoded) is None
    raw = bytes(decoded.input if path == _EMBEDDINGS else decoded.prompt)
    return raw.lstrip(b"[ \t\r\n")[:1] == b'"'

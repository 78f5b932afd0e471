"""A request's ids: first the cache, then the rung that the ladder chooses; a replica's own
`/tokenize` where nothing here can make them.

Invariants:
- One job per miss; its result fills the cache even where its caller is gone.
- Where ids cannot be had, the outcome says why; it is never an error by itself.
"""

import asyncio
from functools import partial
from typing import Final

from tokenlane.config.settings import TokenSettings
from tokenlane.errors import RequestError
from tokenlane.parts import RawBody, whole
from tokenlane.prompt import Prompt, Rung
from tokenlane.protocols import context_window
from tokenlane.protocols.bodies import CompletionBody, Kind, Prompted
from tokenlane.protocols.context_window import NO_LIMIT
from tokenlane.protocols.inspection import is_ids
from tokenlane.runtime.clock import perf_counter
from tokenlane.telemetry.stalls.stages import AWAITING, TOKENIZE_LOCAL
from tokenlane.tokens import keys, ladder
from tokenlane.tokens.body_marks import BodySource
from tokenlane.tokens.caches.body_prefixes import LEAST_BYTES, OPENING_BYTES, BodyPrefixCache
from tokenlane.tokens.caches.budgets import CacheBudgets, TokenCaches
from tokenlane.tokens.caches.doorkeeper import Doorkeeper
from tokenlane.tokens.caches.listed_ids import ListedIdsCache
from tokenlane.tokens.caches.lru import PromptCache
from tokenlane.tokens.job import Tokenized, TokenJob
from tokenlane.tokens.ladder import JobView, PoolView, Speed
from tokenlane.tokens.model_tokenizers import LoadedModel, ModelTokenizers
from tokenlane.tokens.next_turn import NextTurn, begun, continued
from tokenlane.tokens.rungs import local, replica, short
from tokenlane.tokens.rungs.processes import LostError, ProcessPool
from tokenlane.tokens.rungs.replica import Ask
from tokenlane.tokens.rungs.threads import ThreadPool, default_count
from tokenlane.tokens.rungs.waiters import Waiters
from tokenlane.tokens.turn_job import turn_job

# Why there are no ids: no rung had room.
_FULL: Final = "overload"
# Found once, as in tokenlane.protocols.routes.
_CACHE: Final = Rung.CACHE
# Messages that take about 10 µs to make ids of: what comes once is not worth its place in a cache.
_CHEAP_BYTES: Final = 1024


class Outcome:
    """prompt: None on the bail rung, and then `reason` says why. queue_s, run_s: seconds."""

    def __init__(
        self,
        prompt: Prompt | None,
        rung: Rung,
        reason: str = "",
        queue_s: float = 0.0,
        run_s: float = 0.0,
    ) -> None:
        self.prompt = prompt
        self.rung = rung
        self.reason = reason
        self.queue_s = queue_s
        self.run_s = run_s


class TokenService:
    """The ids of requests. block_tokens: of the hashes. ask: asks a replica, where that is wanted.
    queue_limit_bytes: of prompts that wait for a thread."""

    def __init__(
        self,
        settings: TokenSettings,
        tokenizers: ModelTokenizers,
        block_tokens: int,
        ask: Ask | None = None,
    ) -> None:
        self._settings = settings
        self._tokenizers = tokenizers
        self._block_tokens = block_tokens
        self._ask = ask
        self.queue_limit_bytes = settings.queue_limit_bytes
        self._permit = asyncio.Lock()
        self._room = Waiters()
        self.budgets = CacheBudgets.of(settings)
        self.models = {
            model: LoadedModel(tokenizer, Speed(), TokenCaches.of(self.budgets))
            for model, tokenizer in tokenizers.loaded.items()
        }
        self.cache = PromptCache(self.budgets.request)
        self._doorkeeper = Doorkeeper()
        self.bodies = BodyPrefixCache(self.budgets.body)
        self.listed = ListedIdsCache(self.budgets.listed)
        self.threads = ThreadPool(settings.threads or default_count(), self._finished)
        self.processes = ProcessPool(settings, self._finished)
        self._look_short = partial(self._pool, 0.0, True)

    @property
    def block_tokens(self) -> int:
        """Tokens per block of the hashes made from now on."""
        return self._block_tokens

    def rehash(self, block_tokens: int) -> None:
        """Adopt the replicas' block size, known now or changed: earlier hashes are void."""
        if block_tokens != self._block_tokens:
            self._block_tokens = block_tokens
            self.cache.clear()
            self.bodies.clear()

    def close(self) -> None:
        """End the threads and the processes."""
        self.threads.close()
        self.processes.close()

    def begun(self, kind: Kind, raw: RawBody) -> NextTurn | None:
        """Return what is new in a conversation's body that begins as a known one."""
        return begun(self.bodies, kind, raw)

    def known(
        self,
        model: str,
        body: Prompted,
        turn: NextTurn | None = None,
        *,
        keeps_ids: bool = True,
    ) -> Outcome | bytes:
        """Return what needs no job: ids from the cache, or that there is no tokenizer; otherwise
        the key to call `make` with, b"" where that goes on with the turn. turn: of the body, where
        it begins as a known one. keeps_ids: somebody gets the ids; otherwise they may be counted
        and hashed alone."""
        # Most requests name a model with a tokenizer of its own.
        if model not in self.models and self._ask is None and self._tokenizers.get(model) is None:
            return Outcome(None, Rung.BAIL, "no-tokenizer")
        if turn is not None:
            if turn.known.model == self._tokenizers.own(model):
                prompt = self._continued(model, turn, keeps_ids)
                if prompt is not None:
                    return Outcome(prompt, _CACHE)
                if len(turn.body) >= LEAST_BYTES:
                    return b""
                self.bodies.misses += 1
            turn.complete()
        key = keys.token_key(model, self._tokenizers.own(model), body)
        prompt = self.cache.get(key)
        return key if prompt is None else Outcome(prompt, _CACHE)

    def _continued(self, model: str, turn: NextTurn, keeps_ids: bool) -> Prompt | None:
        known, hash_salt = turn.known, keys.salt(model, turn.request)
        key = keys.tail_key(known.seed, hash_salt, turn.tail) if known.seed else b""
        prompt = self.cache.get(key) if key else None
        if prompt is not None and (prompt.parts or not keeps_ids):
            return prompt
        own, hop_s = self.models[known.model], self._settings.thread_hop_s
        source = BodySource(self.bodies, b"", known.model, keeps_ids=keeps_ids)
        prompt = continued(turn, own, hop_s, hash_salt, self._block_tokens, source)
        if prompt is not None:
            self.bodies.hits += 1
            if key and self._doorkeeper.knew(key):
                self.cache.put(key, prompt)
        return prompt

    def plain(self, model: str, body: Prompted, key: bytes, raw: bytes = b"") -> Outcome | None:
        """Return the ids of a short conversation of a known shape, made on the loop; None for any
        other, which `make` is called for. raw: as `make`'s."""
        if not key or self._room.waiting or type(body) is CompletionBody:
            return None
        size_bytes = keys.prompt_size_bytes(body)
        if size_bytes >= LEAST_BYTES or not short.takes(body):
            return None
        settings, own = self._settings, self._tokenizers.own(model)
        if own not in self.models or not ladder.has_time(self._loop_late_s(), settings):
            return None
        began_s, own_salt, source = perf_counter(), keys.salt(model, body), None
        if OPENING_BYTES <= len(raw) < LEAST_BYTES:
            source = BodySource(self.bodies, raw, own, keeps_ids=True)
        prompt = short.plain(self.models[own], body, self._block_tokens, own_salt, settings, source)
        if prompt is None:
            return None
        if size_bytes > _CHEAP_BYTES or self._doorkeeper.knew(key):
            self.cache.put(key, prompt)
        return Outcome(prompt, Rung.SHORT, "", 0.0, perf_counter() - began_s)

    async def make(
        self,
        model: str,
        body: Prompted,
        key: bytes,
        *,
        limit_tokens: int = NO_LIMIT,
        tenant: str = "",
        raw: bytes = b"",
        turn: NextTurn | None = None,
        keeps_ids: bool = True,
    ) -> Outcome:
        """Return the ids of a request, by one of the rungs below the cache. limit_tokens: of the
        context; what may be longer waits for its ids where the ladder is full. tenant: whose it is.
        raw: the body it was read of, if others may begin as it does; turn, keeps_ids: as `known`'s.
        Raise RequestError where vLLM would refuse the prompt, and where ids that are needed cannot
        be had in time."""
        own = self._tokenizers.own(model)
        if turn is not None:
            outcome = None if key else await self._turned(model, turn, tenant, keeps_ids)
            if outcome is not None:
                return outcome
            turn.complete()
            key, raw = key or keys.token_key(model, own, body), whole(turn.body)
        if reason := keys.unreadable(body):
            return Outcome(None, Rung.BAIL, reason)
        if self.asks(model, body):
            return await self._asked(model, body, key)
        loaded, size_bytes, source = self.models[own], keys.prompt_size_bytes(body), None
        if len(raw) >= LEAST_BYTES:
            source = BodySource(self.bodies, raw, own, keeps_ids=keeps_ids)
        job = TokenJob(
            loaded,
            body,
            key=b"" if loaded.tokenizer.volatile else key,
            size_bytes=size_bytes,
            block_tokens=self._block_tokens,
            salt=keys.salt(model, body),
            limit_tokens=limit_tokens,
            tenant=tenant,
            source=source,
        )
        view = job.view(self._loop_late_s())
        outcome = await self._climb(job, view)
        # A prompt with fewer bytes than the context has tokens fits; others have to be counted.
        if size_bytes > limit_tokens and outcome.reason == _FULL:
            attempt, limit_s = partial(self._climb, job, view), self._settings.needed_wait_s
            found = await self._room.attempt(attempt, limit_s, lambda made: made.reason != _FULL)
            if found is None:
                raise context_window.uncounted()
            outcome, waited_s = found
            outcome.queue_s += waited_s
        if outcome.prompt is not None and is_ids(body):
            outcome.rung = Rung.TOKEN_INPUT
        return outcome

    async def _turned(
        self, model: str, turn: NextTurn, tenant: str, keeps_ids: bool
    ) -> Outcome | None:
        """Return the ids of a turn that goes on from a known body, made in a thread; None where all
        of the body has to be read, or there is no room."""
        loaded, own_salt = self.models[turn.known.model], keys.salt(model, turn.request)
        source = BodySource(self.bodies, b"", turn.known.model, keeps_ids=keeps_ids)
        job = turn_job(turn, loaded, source, own_salt, self._block_tokens, tenant)
        view = job.view(self._loop_late_s())
        look = partial(self._pool, view.total_s, False)
        rung = ladder.choose(view, look, self._settings, begun=True)
        if rung is Rung.THREADS and not self._has_its_share(job):
            with AWAITING[TOKENIZE_LOCAL]:
                made = await self.threads.submit(job, view.total_s, short=False)
            if made.prompt is not None:
                self.bodies.hits += 1
                return _outcome(made, rung)
        self.bodies.misses += 1
        return None

    def asks(self, model: str, body: Prompted) -> bool:
        """Return whether a replica is asked for the ids of such a request."""
        tokenizer = self._tokenizers.get(model)
        return self._ask is not None and (tokenizer is None or tokenizer.made_elsewhere(body))

    async def _asked(self, model: str, body: Prompted, key: bytes) -> Outcome:
        assert self._ask is not None
        tokenizer = self._tokenizers.get(model)
        made = await replica.run(self._ask, model, body, tokenizer, self._block_tokens)
        if not (tokenizer and tokenizer.volatile):
            self._keep(key, made)
        return _outcome(made, Rung.TOKEN_INPUT if is_ids(body) else Rung.REPLICA)

    async def prompt(self, model: str, body: Prompted) -> Outcome:
        """Return the ids of a request: `known`, else `make`."""
        known = self.known(model, body)
        return known if isinstance(known, Outcome) else await self.make(model, body, known)

    async def _climb(self, job: TokenJob, view: JobView) -> Outcome:
        is_short = view.total_s <= self._settings.short_lane_s
        look = self._look_short if is_short else partial(self._pool, view.total_s, False)
        rung = ladder.choose(view, look, self._settings)
        if rung is Rung.SHORT:
            result = short.run(job, self._settings)
            if result is not None:
                self._finished(job, result)
                return _outcome(result, rung)
            rung = ladder.choose(view, look, self._settings, begun=True)
        if self._has_its_share(job):
            if job.size_bytes <= job.limit_tokens:
                return Outcome(None, Rung.BAIL, "tenant-share")
            self._room.made()
            raise context_window.uncounted()
        if rung is Rung.THREADS:
            with AWAITING[TOKENIZE_LOCAL]:
                made = await self.threads.submit(job, view.total_s, short=is_short)
        elif rung is Rung.PROCESSES:
            try:
                with AWAITING[TOKENIZE_LOCAL]:
                    made = await self.processes.submit(job, view.total_s)
            except LostError:
                return Outcome(None, Rung.BAIL, "process-lost")
        elif rung is Rung.LOCAL:
            made = await local.run(job, self._permit, self._settings.stall_budget_s)
            self._finished(job, made)
        else:
            return Outcome(None, Rung.BAIL, _FULL)
        return _outcome(made, rung)

    def _loop_late_s(self) -> float:
        """Return how late the loop is, as far as jobs in the threads show it."""
        return self.threads.late_s if self.threads.queued_jobs else 0.0

    def _has_its_share(self, job: TokenJob) -> bool:
        """Return whether a tenant has half of all that may be in line: the other half is for
        others."""
        held_bytes = self.threads.tenants.of(job.tenant) + self.processes.tenants.of(job.tenant)
        share_bytes = self._settings.queue_limit_bytes // 2
        return held_bytes > 0 and held_bytes + job.size_bytes > share_bytes

    def _pool(self, predicted_s: float, short: bool) -> PoolView:
        threads, processes = self.threads, self.processes
        return PoolView(
            threads.count,
            threads.queued_jobs,
            threads.queued_bytes,
            threads.wait_s(predicted_s, short=short),
            self._permit.locked(),
            processes.ready_count,
            processes.outstanding_bytes,
        )

    def _finished(self, job: TokenJob, result: Tokenized | None) -> None:
        if self._room.waiting:
            # After the pool has stopped counting this job.
            asyncio.get_running_loop().call_soon(self._room.made)
        if result is not None:
            self._keep(job.key, result)

    def _keep(self, key: bytes, made: Tokenized) -> None:
        prompt = made.prompt
        if prompt is not None and key and prompt.block_tokens == self._block_tokens:
            self.cache.put(key, prompt)


def _outcome(result: Tokenized, rung: Rung) -> Outcome:
    error = result.error
    if isinstance(error, RequestError):
        raise error.copy()
    if error is not None:
        return Outcome(None, Rung.BAIL, error.reason, result.queue_s, result.seconds)
    return Outcome(result.prompt, rung, "", result.queue_s, result.seconds)

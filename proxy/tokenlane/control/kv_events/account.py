"""All that is known of one publisher: its messages in order, the ledger they make, and how far
that may be believed. Pure; the sockets are in tokenlane.control.kv_events.subscribers.

Invariants:
- After a loss the ledger begins empty and its standing is PARTIAL until the cache is known to be
  empty: a removal that was missed would otherwise be believed for ever.
- A publisher that does not answer is silent: its standing is NONE until it is heard of again.
"""

from collections import Counter
from dataclasses import KW_ONLY, dataclass

import msgspec

from tokenlane.control.kv_events.batches import Cleared, Garbled, Medium, Stored, decode
from tokenlane.control.kv_events.ledger import Ledger, LedgerContents
from tokenlane.control.kv_events.sequence import (
    Action,
    Apply,
    Ask,
    Lost,
    MessageSequence,
    Restarted,
)
from tokenlane.fleet_state import CacheChange, Standing
from tokenlane.tokens.blocks import hashing_mark
from tokenlane.tokens.keys import salt_of

# Questions in a row without an answer that make a publisher silent.
SILENT_QUESTIONS = 2


class AccountSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A complete account, for another gateway. hashing: the hash of a sample block, the same where
    prompts are hashed alike. position: of the sequence."""

    hashing: bytes
    position: tuple[int, int]
    ledger: LedgerContents


@dataclass(eq=False)
class PublisherAccount:
    """Of one rank of one replica. Times: Unix seconds.

    events: by type as the engines call them, and `unread`. lost_messages: never seen. lag_s: of
    the last live message, by the publisher's clock. heard: messages since the last `quiet`.
    """

    slot: int
    rank: int
    _: KW_ONLY
    ranks: int
    model: str
    block_tokens: int
    limit_blocks: int
    can_replay: bool

    def __post_init__(self) -> None:
        self._standing = Standing.COMPLETE
        self._unanswered = 0
        self._begun = False
        self._retired = False
        self._cleared = True
        self._forget = False
        self._heard = 0
        self.ledger = Ledger(self.model, self.block_tokens, self.limit_blocks)
        self.sequence = MessageSequence(can_replay=self.can_replay)
        self.events: Counter[str] = Counter()
        self.gaps = 0
        self.lost_messages = 0
        self.lag_s = 0.0
        self.peak_blocks = 0
        self.changed = True

    @property
    def silent(self) -> bool:
        """It has not answered for too long."""
        return self._unanswered >= SILENT_QUESTIONS

    @property
    def standing(self) -> Standing:
        """How far the ledger may be believed."""
        if self._retired or self.silent or not self._begun:
            return Standing.NONE
        if self.ledger.left_out:
            return Standing.PARTIAL
        return self._standing

    def live(self, number: int, payload: bytes, now_s: float) -> Ask | None:
        """A message of the live stream. Returns the question to ask, if any."""
        self._hear()
        before = self.sequence.gaps
        ask = self._do(self.sequence.live(number, payload), now_s)
        self.gaps += self.sequence.gaps - before
        return ask

    def replayed(self, question: int, number: int, payload: bytes) -> Ask | None:
        """A message of a replay."""
        return self._do(self.sequence.replayed(question, number, payload), 0.0)

    def ended(self, question: int) -> Ask | None:
        """A replay is complete."""
        self._hear()
        return self._do(self.sequence.ended(question), 0.0)

    def failed(self, question: int) -> Ask | None:
        """A question got no answer, or not the end of one. Returns the question for the rest."""
        ask = self._do(self.sequence.failed(question), 0.0)
        if ask is None:
            self._unanswered += 1
            self.changed = True
        return ask

    def ask(self) -> Ask | None:
        """Asks for what may have been missed, as at the start."""
        return self._do(self.sequence.ask(), 0.0)

    def quiet(self) -> bool:
        """Whether no live message has come since this was last asked."""
        heard, self._heard = self._heard, 0
        return not heard

    def reset(self) -> None:
        """The process is gone, and with it the cache and the numbering."""
        self._forget_all(forget=True)
        self.sequence = MessageSequence(can_replay=self.can_replay)
        self._begun = False

    def retire(self) -> None:
        """Nothing more will be heard."""
        self._forget_all(forget=False)
        self._retired = True

    def snapshot(self) -> AccountSnapshot | None:
        """All that is known, to be packed at once; None unless it is all there is to know."""
        if self.standing is not Standing.COMPLETE or not self.sequence.expected:
            return None
        return AccountSnapshot(self._hashing(), self.sequence.position, self.ledger.contents())

    def resume(self, snapshot: AccountSnapshot) -> bool:
        """Go on from what another gateway knows, before anything was heard. Nothing of it is
        believed before the publisher has answered. False, and no change, where it is of no use."""
        if not self.can_replay or snapshot.hashing != self._hashing():
            return False
        if not self.ledger.restore(snapshot.ledger):
            return False
        self.sequence.resume(snapshot.position)
        return True

    def _hashing(self) -> bytes:
        return hashing_mark(self.block_tokens, salt_of(self.model, ""))

    def take(self) -> CacheChange | None:
        """What workers have to be told; None if nothing."""
        if not self.changed:
            return None
        self.changed = False
        changes = self.ledger.take()
        gpu, host = changes.get(Medium.GPU), changes.get(Medium.HOST)
        change = CacheChange(
            self.slot,
            self.rank,
            self.ranks,
            self.standing,
            self.block_tokens,
            self._cleared,
            self._forget,
            gpu.stored if gpu else b"",
            gpu.removed if gpu and not self._cleared else b"",
            host.stored if host else b"",
            host.removed if host and not self._cleared else b"",
        )
        self._cleared = self._forget = False
        return change

    def _hear(self) -> None:
        self._heard += 1
        if self._unanswered or not self._begun:
            self._unanswered = 0
            self._begun = True
            self.changed = True

    def _do(self, actions: list[Action], now_s: float) -> Ask | None:
        asked = None
        for action in actions:
            if isinstance(action, Apply):
                self._apply(action.payload, now_s)
            elif isinstance(action, Ask):
                asked = action
            elif isinstance(action, Lost):
                self.lost_messages += action.messages
                self._forget_all(forget=False)
                self._standing = Standing.PARTIAL
            elif isinstance(action, Restarted):
                self._forget_all(forget=True)
        return asked

    def _apply(self, payload: bytes, now_s: float) -> None:
        self.changed = True
        try:
            batch = decode(payload)
        except Garbled:
            # Whatever it said of blocks that are gone was missed.
            self.events["unread"] += 1
            self._forget_all(forget=False)
            self._standing = Standing.PARTIAL
            return
        if now_s and batch.sent_s:
            self.lag_s = max(now_s - batch.sent_s, 0.0)
        if batch.unread:
            self.events["unread"] += batch.unread
        for event in batch.events:
            if isinstance(event, Cleared):
                self.events["AllBlocksCleared"] += 1
                self._forget_all(forget=True)
            elif isinstance(event, Stored):
                self.events["BlockStored"] += 1
                self.ledger.apply(event)
            else:
                self.events["BlockRemoved"] += 1
                self.peak_blocks = max(self.peak_blocks, self.ledger.held_blocks(Medium.GPU))
                self.ledger.apply(event)

    def _forget_all(self, *, forget: bool) -> None:
        """The ledger begins anew. forget: because the cache is empty."""
        self.ledger.reset()
        self._cleared = self.changed = True
        if forget:
            self._forget = True
            self._standing = Standing.COMPLETE

    def __repr__(self) -> str:
        return f"<Account {self.slot}/{self.rank} {self.standing} {self.ledger!r}>"

"""Prompts on their way: what a replica will hold in a moment, before its events say so.

Where a replica's KV events are known, they tell what it holds. Between a choice and the event
lie the queue and the prefill; siblings that arrive meanwhile must find the prompt.

Invariants:
- A prompt is kept from the choice until the replica has computed it (its first byte, or the end
  of the attempt), and a little longer, until the event is here.
- Prompts are kept in epochs of EPOCH_S, dropped whole: nothing is searched for or freed singly.
- Prompts that other workers sent have no end that this one sees: they are kept for HINT_S.
"""

from typing import Final

from tokenlane.routing.generation import Generation

EPOCH_S: Final = 1.0
# From the first byte to the blocks in the index: the publisher's step, the network, two hops.
LAG_S: Final = 1.0
HINT_S: Final = 10.0
# Epochs that are kept open by long waits do not become more than this: the last one grows.
_EPOCHS_LIMIT: Final = 8


class Epoch:
    """Prompts of about EPOCH_S. open: those not computed yet; only leases change it."""

    __slots__ = ("_generation", "_since_s", "_until_s", "open")

    def __init__(self, now: float) -> None:
        self._generation = Generation()
        self._since_s = now
        self._until_s = now + EPOCH_S + LAG_S
        self.open = 0

    def young(self, now: float) -> bool:
        """Whether it still takes prompts in."""
        return now - self._since_s < EPOCH_S

    def over(self, now: float) -> bool:
        """Whether nothing in it is on its way any more."""
        return self.open <= 0 and now >= self._until_s

    def insert(self, blocks: bytes, hashes: memoryview, until_s: float) -> None:
        """A prompt more, to be kept at least until then."""
        self._generation.insert(blocks, hashes, self._generation.match(blocks, hashes))
        self._until_s = max(self._until_s, until_s)

    def match(self, blocks: bytes, hashes: memoryview) -> int:
        """Leading blocks that one of its prompts shares."""
        return self._generation.match(blocks, hashes)

    @property
    def size_bytes(self) -> int:
        """Memory held, estimated."""
        return self._generation.size_bytes


class Pending:
    """By slot. `blocks`: packed uint64; `hashes`: their "Q" view. `now`: monotonic seconds."""

    def __init__(self) -> None:
        self._epochs: dict[int, list[Epoch]] = {}

    def insert(self, slot: int, blocks: bytes, now: float, *, hint: bool = False) -> Epoch:
        """A prompt goes to the replica; the lease keeps the epoch open. hint: no lease will."""
        epochs = self._epochs.get(slot)
        if epochs is None:
            epochs = self._epochs[slot] = []
        if not epochs or not (epochs[-1].young(now) or len(epochs) >= _EPOCHS_LIMIT):
            epochs.append(Epoch(now))
        epoch = epochs[-1]
        until_s = now + (HINT_S if hint else LAG_S)
        epoch.insert(blocks, memoryview(blocks).cast("Q"), until_s)
        return epoch

    def match(self, slot: int, blocks: bytes, hashes: memoryview) -> int:
        """Leading blocks on their way to the replica."""
        epochs = self._epochs.get(slot)
        if not epochs:
            return 0
        return max([epoch.match(blocks, hashes) for epoch in epochs])

    def sweep(self, now: float) -> None:
        """Drops what is over."""
        for slot, epochs in self._epochs.items():
            if any(epoch.over(now) for epoch in epochs):
                self._epochs[slot] = [epoch for epoch in epochs if not epoch.over(now)]

    def forget(self, slot: int) -> None:
        """Nothing is on its way there any more."""
        self._epochs.pop(slot, None)

    @property
    def size_bytes(self) -> int:
        """Memory held, estimated."""
        return sum(epoch.size_bytes for epochs in self._epochs.values() for epoch in epochs)

    def __repr__(self) -> str:
        counts = {slot: len(epochs) for slot, epochs in self._epochs.items()}
        return f"<Pending epochs {counts}>"

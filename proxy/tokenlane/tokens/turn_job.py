"""The next turn of a known conversation as a job for a thread: what takes longer than a hop.

Invariant: a job without a prompt and without an error found that all of the body has to be read.
"""

from dataclasses import dataclass, field
from time import perf_counter

from tokenlane.tokens.body_marks import BodySource
from tokenlane.tokens.job import Tokenized, TokenJob
from tokenlane.tokens.ladder import NO_LIMIT_S, JobView
from tokenlane.tokens.model_tokenizers import LoadedModel
from tokenlane.tokens.next_turn import NextTurn, continued, run_s


@dataclass(slots=True, eq=False)
class TurnJob(TokenJob):
    """source: where the body is kept, not None."""

    turn: NextTurn = field(kw_only=True)

    def view(self, loop_late_s: float) -> JobView:
        """Return it as the ladder sees it: what holds the GIL is short."""
        total_s = run_s(self.turn) + self.model.speed.encode_s(self.size_bytes)
        return JobView(self.size_bytes, 0.0, total_s, 0.0, loop_late_s)

    def advance(self, slice_s: float) -> Tokenized:
        """Make the prompt, in one go: it takes about a millisecond."""
        began_s, source = perf_counter(), self.source
        assert source is not None
        try:
            prompt = continued(
                self.turn, self.model, NO_LIMIT_S, self.salt, self.block_tokens, source
            )
        except BaseException as problem:  # noqa: BLE001 - it is the result
            return Tokenized.failed(problem, perf_counter() - began_s)
        return Tokenized(prompt, None, perf_counter() - began_s)


def turn_job(
    turn: NextTurn,
    model: LoadedModel,
    source: BodySource,
    salt: bytes,
    block_tokens: int,
    tenant: str,
) -> TurnJob:
    """Return a turn's job; the arguments are as a TokenJob's."""
    return TurnJob(
        model,
        turn.request,
        key=b"",
        size_bytes=len(turn.tail),
        block_tokens=block_tokens,
        salt=salt,
        tenant=tenant,
        source=source,
        turn=turn,
    )

"""`tokenlane doctor`: whether each replica makes the ids that the gateway would make.

Invariants:
- Replicas are asked what a running gateway asks them as they appear.
"""

from collections.abc import Callable, Mapping
from random import Random

from tokenlane.config.keyring import replica_key
from tokenlane.config.settings import Settings
from tokenlane.config.tls import upstream_context
from tokenlane.fleet_state import FleetState, IdKind, ReplicaState
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.id_questions import CannotSayError, IdQuestions
from tokenlane.gateway.prover import PROVABLE
from tokenlane.tokens.tokenizer import Tokenizer

_DEADLINE_S = 10.0


async def check_ids(
    settings: Settings,
    replicas: tuple[ReplicaState, ...],
    tokenizers: Mapping[str, Tokenizer],
    fine: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Ask every replica that is up about every model it serves."""
    fleet = Fleet(
        settings.upstream, replica_key(settings.upstream), upstream_context(settings.upstream)
    )
    fleet.update(FleetState(1, replicas))
    try:
        for replica in replicas:
            for model in replica.models:
                tokenizer = tokenizers.get(model)
                if tokenizer is None:
                    continue
                about = f"ids of {model} at {replica.url}"
                asked = IdQuestions(fleet[replica.slot], model, tokenizer, _DEADLINE_S)
                try:
                    other, count = await _other(asked)
                except CannotSayError as error:
                    warn(f"{about}: not proven ({error}); they are not used for this replica")
                    continue
                if other is None:
                    fine(f"{about}: the same, of {count} prompts")
                else:
                    warn(
                        f"{about}: it makes others ({other.label}); is the folder the one that it"
                        " loads? Ours are not used for it"
                    )
    finally:
        fleet.close()


async def _other(asked: IdQuestions) -> tuple[IdKind | None, int]:
    """The first kind that differs, else how many prompts were the same."""
    count = 0
    for kind in PROVABLE:
        found = await asked.agrees(kind, Random())
        if not isinstance(found, int):
            return kind, count
        count += found
    return None, count

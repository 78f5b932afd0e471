"""LoRA adapters: names that replicas serve beside the model that each is one of.

Invariants:
- An adapter that two replicas put on two models is none: which tokenizer it speaks is not known.
"""

from collections.abc import Iterable

from proxy.model import ReplicaState


def bases(replicas: Iterable[ReplicaState]) -> dict[str, str]:
    """The model of each adapter that is loaded somewhere."""
    found: dict[str, str] = {}
    doubtful: set[str] = set()
    for replica in replicas:
        for adapter, model in replica.adapters.items():
            if found.setdefault(adapter, model) != model:
                doubtful.add(adapter)
    return {adapter: model for adapter, model in found.items() if adapter not in doubtful}

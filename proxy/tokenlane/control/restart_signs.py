"""Signs that another process answers behind a replica's URL. Pure.

Invariants:
- What a probe did not learn is no sign, and does not hide the next one.
- A creation time that moves with the clock (vLLM makes one for each answer) is none either.
- What is known of a process is bounded: where a replica lists new names all the time, old ones are
  forgotten.
"""

import msgspec

# A clock that is set, an answer that took its time.
_SLACK_S = 5.0
_ROOTS_LIMIT_COUNT = 4096


class Signs(msgspec.Struct, frozen=True):
    """What a replica says of its process. at_s: when, monotonic. started_s: 0 if unknown.
    created_s: of the oldest of its models, 0 if unknown. roots: where its models are from, by name.
    """

    at_s: float = 0.0
    started_s: float = 0.0
    version: str = ""
    created_s: float = 0.0
    roots: dict[str, str] = {}


def is_other_process(before: Signs, now: Signs) -> bool:
    """Return whether these cannot be words of the same process."""
    if before.started_s and now.started_s and before.started_s != now.started_s:
        return True
    if before.version and now.version and before.version != now.version:
        return True
    if any(before.roots.get(model, root) != root for model, root in now.roots.items()):
        return True
    if not before.created_s or not now.created_s or before.created_s == now.created_s:
        return False
    moved_s = now.created_s - before.created_s
    return abs(moved_s - (now.at_s - before.at_s)) > _SLACK_S


def is_same_process(before: Signs, now: Signs) -> bool:
    """Return whether these must be words of the same process."""
    return before.started_s != 0.0 and before.started_s == now.started_s


def latest(before: Signs, now: Signs) -> Signs:
    """Return what is known after both."""
    roots = {**before.roots, **now.roots}
    return Signs(
        # The creation time belongs to the moment it was read.
        at_s=now.at_s if now.created_s else before.at_s,
        started_s=now.started_s or before.started_s,
        version=now.version or before.version,
        created_s=now.created_s or before.created_s,
        roots=roots if len(roots) <= _ROOTS_LIMIT_COUNT else now.roots,
    )

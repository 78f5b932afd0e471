"""What each may have of something that is too little for all (max-min fairness).

Invariants:
- Who wants no more than an equal part gets what it wants; what it leaves goes to the others.
"""

from collections.abc import Collection


def fair_share(sizes: Collection[int], total: int) -> int:
    """The most that each may have, so that what all get adds up to `total` at most.

    sizes: what each wants. `total` where there is enough for all.
    """
    left, count = total, len(sizes)
    for size in sorted(sizes):
        if size * count > left:
            return left // count
        left -= size
        count -= 1
    return total

"""How long the property tests of whole parts search. EXAMPLES=10 makes it ten times as long."""

import os


def many(count: int) -> int:
    """Return how many examples to try where CI tries `count`."""
    return count * int(os.environ.get("EXAMPLES", "1"))

"""How many file descriptors this process may have.

Invariants:
- The soft limit is a default for programs that use select(): it is raised as far as it may be, but
  not beyond what one process could ever serve, for each client takes memory.
"""

import contextlib
import resource

_ENOUGH_COUNT = 65536


def raise_limit() -> None:
    """Take as many as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_COUNT if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_COUNT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # the system allows fewer
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

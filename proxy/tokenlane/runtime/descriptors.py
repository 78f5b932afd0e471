"""The limit of this process's file descriptors.

Invariants:
- The soft limit is a default for programs that use select(): it is raised to the hard limit, but
  not beyond what one process could ever serve, since each client takes memory.
"""

import contextlib
import errno
import os
import resource

_ENOUGH_COUNT = 65536


def raise_limit() -> None:
    """Raise the limit as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_COUNT if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_COUNT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # the system allows fewer
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def are_lacking(error: OSError) -> bool:
    """Return whether it was raised because nothing more can be opened. A look-up of a name fails
    for that with an error of its own, so it is tried."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as found:
        error = found
    return error.errno in (errno.EMFILE, errno.ENFILE)

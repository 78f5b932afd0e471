"""Memory that processes share through an inherited file descriptor.

Invariants:
- It never has a name in a file system, so nothing is left behind, and never a disk below it: a
  store into it cannot wait for write-back or fail on a full disk.
"""

import os


def shared_file(name: str, size_bytes: int) -> int:
    """Return the descriptor of a new zeroed file, close-on-exec. The caller closes it."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size_bytes)
    return descriptor

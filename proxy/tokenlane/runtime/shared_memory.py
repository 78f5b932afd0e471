"""Memory that processes share through an inherited file descriptor.

Invariants:
- It never has a name in a file system, so nothing is left behind, and on Linux never a disk
  below it: a store into it cannot wait for write-back or fail on a full disk.
"""

import os
import tempfile


def shared_file(name: str, size_bytes: int) -> int:
    """Return the descriptor of a new zeroed file, close-on-exec. The caller closes it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    else:  # pragma: no cover - not Linux
        with tempfile.TemporaryFile(prefix=name) as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size_bytes)
    return descriptor

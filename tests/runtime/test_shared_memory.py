"""Shared memory has no name and is not inherited unless it is passed."""

import os

from tokenlane.runtime.shared_memory import shared_file


def test_zeroed_and_close_on_exec() -> None:
    descriptor = shared_file("test", 4096)
    try:
        assert os.fstat(descriptor).st_size == 4096
        assert os.pread(descriptor, 4096, 0) == bytes(4096)
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)

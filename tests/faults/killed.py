"""A replica whose processes are killed (SIGKILL) at a given byte of their answer.

    python killed.py LISTENER_FD RECORDING...

A request says with `x-stream` and `x-cut` which recording to begin and how many of its bytes to
send. Each request is served by a process of its own, which is killed there; the parent makes new
ones. It imports nothing of the gateway, so that making one is cheap, and ends with its stdin.
"""

import os
import re
import select
import signal
import socket
import sys
from pathlib import Path

CHILDREN = 12


def serve(listener: socket.socket, answers: list[bytes]) -> None:
    """One request, and the end."""
    connection, _ = listener.accept()
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length, stream, cut = (
        int(re.search(rb"\r\n%b: (\d+)" % name, head)[1])  # type: ignore[index]
        for name in (b"content-length", b"x-stream", b"x-cut")
    )
    while len(body) < length:
        body += connection.recv(65536)
    connection.sendall(answers[stream][:cut])
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Keeps so many processes waiting for a request until stdin ends."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    answers = [Path(name).read_bytes() for name in sys.argv[2:]]
    children: set[int] = set()
    while not select.select([0], [], [], 0)[0]:
        while len(children) < CHILDREN:
            child = os.fork()  # noqa: TID251 - one thread, no locks, and made to be killed
            if not child:
                serve(listener, answers)
            children.add(child)
        children.discard(os.waitpid(-1, 0)[0])
    for child in children:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()

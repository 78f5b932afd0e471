"""systemd's readiness protocol (sd_notify): a datagram to the socket it names. Nothing else of
systemd is needed, and without it nothing happens.

Invariants:
- A message that cannot be sent is a line in the log, never an error: the gateway serves without it.
"""

import logging
import os
import socket

log = logging.getLogger(__name__)


def notify(*lines: str) -> bool:
    """Send systemd a state such as READY=1 or STOPPING=1. Return whether it was sent."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):  # Linux's abstract name space
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.connect(address)
            sock.sendall("\n".join(lines).encode())
    except OSError as error:
        log.warning("cannot notify systemd of %s (%s)", lines[0], error.strerror)
        return False
    return True

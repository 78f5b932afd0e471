"""Listening sockets, with an operator's sentence for each way they can fail.

Invariants:
- A data port is one number for all workers: the supervisor reserves it (bound, not listening),
  workers bind it again with SO_REUSEPORT. A reserved socket takes no connections.
- A port that anybody listens on is taken, also if they set SO_REUSEPORT too (another gateway of
  the same user would otherwise silently share it), unless the operator wants it shared, or they are
  workers whose supervisor died.
"""

import contextlib
import errno
import random
import socket
from urllib.parse import SplitResult, urlsplit

from tokenlane.errors import ConfigError
from tokenlane.runtime import orphans

# Linux hands out ephemeral ports from here on (net.ipv4.ip_local_port_range).
_LOWEST_DEALT = 32768
# Not the module's generator: two processes with the same seed must not draw the same ports.
_DRAWS = random.SystemRandom()


class TakenError(ConfigError):
    """Somebody listens on the port."""


def _resolve(host: str, port: int, option: str) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, ValueError, OverflowError):  # of which a name in half characters is one
        raise ConfigError(f"the host {host!r} is not known here; check {option}") from None
    # IPv4 first where a name has both: `localhost` is 127.0.0.1 in everybody's scripts.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _sentence(error: OSError, host: str, port: int, options: tuple[str, str]) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return TakenError(f"port {port} on {host} is already taken; choose another {options[1]}")
    if error.errno == errno.EACCES:
        return ConfigError(f"port {port} needs more privileges; choose another {options[1]}")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"this machine has no address {host}; check {options[0]}")
    return ConfigError(f"cannot listen on {host}:{port} ({error.strerror})")


def _bind(
    host: str, port: int, options: tuple[str, str], *, reuse_port: bool, listen: bool
) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ConfigError(f"{port} is not a port number; check {options[1]}")
    family, address = _resolve(host, port, options[0])
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        if listen:
            made.listen(1024)
    except OSError as error:
        made.close()
        raise _sentence(error, host, port, options) from None
    made.setblocking(False)
    return made


DATA_OPTIONS = ("--host", "--port")
ADMIN_OPTIONS = ("--admin-host", "--admin-port")


def check(host: str, port: int, options: tuple[str, str]) -> None:
    """Raise ConfigError where no gateway could listen, even if the port were free."""
    with contextlib.suppress(TakenError):
        _bind(host, port, options, reuse_port=True, listen=False).close()


def collide(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Return whether a listener on one address occupies the other. Raise ConfigError."""
    if one[1] != other[1] or not one[1]:
        return False
    (family, (host, _)), (others, (another, _)) = (
        _resolve(*address, "--host") for address in (one, other)
    )
    return family == others and (host == another or {host, another} & {"0.0.0.0", "::"} != set())


def reserve(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return the data port, bound but not listening; port 0 picks one. Raise ConfigError. shared:
    also where another gateway of this user with the same setting serves on it."""
    try:
        with _bind(host, port, DATA_OPTIONS, reuse_port=shared, listen=not shared) as probe:
            chosen = port or probe.getsockname()[1]
    except ConfigError:
        if not orphans.hold(port):
            raise
        chosen = port
    return _bind(host, chosen, DATA_OPTIONS, reuse_port=True, listen=False)


def reuse_port_socket(host: str, port: int) -> socket.socket:
    """Return a worker's own listening socket on the reserved port. Raise ConfigError."""
    return _bind(host, port, DATA_OPTIONS, reuse_port=True, listen=True)


def admin_listener(host: str, port: int) -> socket.socket:
    """Return the admin port's listening socket. Raise ConfigError."""
    return _bind(host, port, ADMIN_OPTIONS, reuse_port=False, listen=True)


def free_ports(count: int) -> int:
    """Return the first of `count` neighbouring free ports on 127.0.0.1 below the ephemeral range,
    so that a process which takes seconds to listen there still finds them free."""
    for _ in range(100):
        first = _DRAWS.randrange(_LOWEST_DEALT // 2, _LOWEST_DEALT - count)
        with contextlib.suppress(ConfigError), contextlib.ExitStack() as held:
            for port in range(first, first + count):
                held.enter_context(
                    _bind("127.0.0.1", port, DATA_OPTIONS, reuse_port=False, listen=True)
                )
            return first
    raise ConfigError(f"no {count} neighbouring ports are free on 127.0.0.1")


def address_of(listener: socket.socket) -> tuple[str, int]:
    """Return host and port as bound."""
    name = listener.getsockname()
    return str(name[0]), int(name[1])


def split_url(text: str) -> tuple[SplitResult, int | None]:
    """Return a URL's parts and its port. Of what is no URL all parts are empty."""
    try:
        parts = urlsplit(text)
        return parts, parts.port
    except ValueError:
        return urlsplit(""), None


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """Return `http://host:port`, with brackets where IPv6 needs them."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

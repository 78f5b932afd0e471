"""Ports: held for the workers, noticed when taken, explained when impossible."""

import socket
from collections.abc import Callable

import pytest

from tokenlane.errors import ConfigError
from tokenlane.runtime import ports

Bind = Callable[[str, int], socket.socket]


def test_workers_share_what_the_supervisor_holds() -> None:
    with ports.reserve("127.0.0.1", 0) as held:
        host, port = ports.address_of(held)
        with ports.reuse_port_socket(host, port), ports.reuse_port_socket(host, port) as second:
            with socket.create_connection((host, port), timeout=1):
                pass
            assert ports.address_of(second) == (host, port)


def test_nobody_answers_on_a_held_port() -> None:
    with ports.reserve("127.0.0.1", 0) as held, pytest.raises(ConnectionRefusedError):
        socket.create_connection(ports.address_of(held), timeout=1)


@pytest.mark.parametrize("bind", [ports.reserve, ports.admin_listener])
def test_a_taken_port(bind: Bind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is already taken"):
            bind("127.0.0.1", port)


def test_another_gateways_port_is_taken_too() -> None:
    """Both set SO_REUSEPORT, so the kernel alone would let them share it."""
    with ports.reserve("127.0.0.1", 0) as held:
        host, port = ports.address_of(held)
        with ports.reuse_port_socket(host, port), pytest.raises(ConfigError, match="already taken"):
            ports.reserve(host, port)


@pytest.mark.parametrize(
    ("host", "port", "sentence"),
    [
        ("no.such.host.invalid", 0, "is not known here; check --host"),
        ("a" * 300, 0, "is not known here"),
        ("192.0.2.1", 0, "this machine has no address 192.0.2.1"),
        ("127.0.0.1", -1, "not a port number"),
        ("127.0.0.1", 65536, "not a port number"),
    ],
)
def test_impossible_addresses(host: str, port: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ports.reserve(host, port)


def test_a_shared_port_is_shared_by_those_who_want_it() -> None:
    with ports.reserve("127.0.0.1", 0) as held:
        host, port = ports.address_of(held)
        with ports.reuse_port_socket(host, port), ports.reserve(host, port, shared=True) as other:
            assert ports.address_of(other) == (host, port)
            with pytest.raises(ConfigError, match="taken"):
                ports.reserve(host, port)


def test_a_shared_port_is_not_taken_from_others() -> None:
    with ports.admin_listener("127.0.0.1", 0) as foreign:
        with pytest.raises(ConfigError, match="taken"):
            ports.reserve(*ports.address_of(foreign), shared=True)


def test_all_addresses_of_ipv6_are_none_of_ipv4() -> None:
    """A client by IPv4 would have an address that `server.trusted_peers` cannot name."""
    with ports.reuse_port_socket("::", 0) as listener:
        port = ports.address_of(listener)[1]
        socket.create_connection(("::1", port), timeout=1).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1)


def test_localhost_is_ipv4() -> None:
    with ports.reserve("localhost", 0) as held:
        assert ports.address_of(held)[0] == "127.0.0.1"


def test_free_ports_are_neighbours() -> None:
    first = ports.free_ports(4)
    for port in range(first, first + 4):
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize(
    ("address", "url"),
    [(("127.0.0.1", 80), "http://127.0.0.1:80"), (("::1", 80), "http://[::1]:80")],
)
def test_url(address: tuple[str, int], url: str) -> None:
    assert ports.url_of(*address) == url


def test_a_taken_port_is_no_mistake_of_the_settings() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports.check("127.0.0.1", other.getsockname()[1], ports.DATA_OPTIONS)
    with pytest.raises(ConfigError, match="this machine has no address"):
        ports.check("203.0.113.7", 0, ports.DATA_OPTIONS)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("127.0.0.1", 5), ("127.0.0.1", 5), True),
        (("localhost", 5), ("127.0.0.1", 5), True),
        (("0.0.0.0", 5), ("127.0.0.1", 5), True),
        (("127.0.0.1", 5), ("127.0.0.2", 5), False),
        (("127.0.0.1", 5), ("127.0.0.1", 6), False),
        (("127.0.0.1", 0), ("127.0.0.1", 0), False),
        (("0.0.0.0", 5), ("::1", 5), False),
        (("::", 5), ("::1", 5), True),
    ],
)
def test_addresses_that_collide(one: tuple[str, int], other: tuple[str, int], same: bool) -> None:
    assert ports.collide(one, other) == same

"""What `fleet.store` may say, and what is said of the rest."""

import pytest

from tokenlane.control.peers.store_address import StoreAddress, StoreKind, store_address
from tokenlane.errors import ConfigError

SERVER, SENTINEL, CLUSTER = StoreKind.SERVER, StoreKind.SENTINEL, StoreKind.CLUSTER


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://store", StoreAddress(SERVER, (("store", 6379),))),
        ("valkey://store:7000/3", StoreAddress(SERVER, (("store", 7000),), database=3)),
        ("rediss://me@[::1]:1", StoreAddress(SERVER, (("::1", 1),), tls=True, user="me")),
        ("valkeys://a%40b@store/", StoreAddress(SERVER, (("store", 6379),), tls=True, user="a@b")),
        (
            "redis+sentinel://one,two:1/main/2",
            StoreAddress(SENTINEL, (("one", 26379), ("two", 1)), database=2, service="main"),
        ),
        (
            "rediss+cluster://me@one:7000,two:7001",
            StoreAddress(CLUSTER, (("one", 7000), ("two", 7001)), tls=True, user="me"),
        ),
    ],
)
def test_addresses(url: str, address: StoreAddress) -> None:
    assert store_address(url) == address


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://store", "must look like"),
        ("redis+sentry://store/a", "must look like"),
        ("redis://", "must look like"),
        ("redis://store:port", "must look like"),
        ("redis://[::1", "is no URL"),
        ("redis://me:secret@store", "must not hold a password"),
        ("redis://store?ssl=no", "must end with its path"),
        ("redis://store/zero", "number of a database"),
        ("redis://store/1/2", "number of a database"),
        ("redis://one,two", "must name one host"),
        ("redis+sentinel://one", "must name the sentinels' service"),
        ("redis+cluster://one/1", "no databases"),
    ],
)
def test_mistakes(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        store_address(url)
    assert "secret" not in str(error.value)

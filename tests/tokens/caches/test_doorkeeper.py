"""A doorkeeper knows what came before, takes few new keys for known ones, and forgets in time."""

from tokenlane.tokens.caches.doorkeeper import Doorkeeper


def keys(first: int, count: int) -> list[bytes]:
    return [number.to_bytes(16, "little") for number in range(first, first + count)]


def test_a_key_is_known_the_second_time() -> None:
    door = Doorkeeper()
    new = keys(0, 1000)
    assert sum(map(door.knew, new)) < 10
    assert all(map(door.knew, new))


def test_few_new_keys_pass_for_known_ones_however_many_come() -> None:
    door = Doorkeeper()
    passed = sum(map(door.knew, keys(0, 500_000)))
    assert passed < 0.1 * 500_000


def test_it_forgets_when_too_many_came() -> None:
    door = Doorkeeper()
    early = keys(0, 100)
    assert sum(map(door.knew, early)) < 5
    assert sum(map(door.knew, keys(1_000, 120_000))) < 12_000
    assert sum(map(door.knew, early)) < 50

"""What others said holds for a lease, and the sums are theirs all along."""

from hypothesis import given
from hypothesis import strategies as st

from tokenlane.control.dashboard.live import PeerRow
from tokenlane.control.peers.peer_message import Load, PeerMessage, packed
from tokenlane.control.peers.peer_table import PEER_LIMIT, REPLICA_LIMIT, PeerTable

LEASE_S = 0.8


def news(gateway: str, loads: dict[int, Load], *, whole: bool = False) -> PeerMessage:
    return PeerMessage(gateway, loads=packed(loads.items()), whole=whole, name=f"name of {gateway}")


def test_news_are_added_up_and_end_with_their_lease() -> None:
    table = PeerTable("me", LEASE_S)
    assert table.take(news("a", {1: (2, 30)}, whole=True), 10.0, 0.0) is not None
    assert table.take(news("b", {1: (1, 0), 2: (4, 5)}), 10.5, 0.0) is not None
    assert table.take(news("me", {1: (9, 9)}), 10.5, 0.0) is None
    assert table.totals == {1: (3, 30), 2: (4, 5)}
    assert table.sweep(10.7) == []
    assert table.next_end_s(10.7) == 10.0 + LEASE_S
    assert [peer.name for peer in table.sweep(10.8)] == ["name of a"]
    assert table.totals == {1: (1, 0), 2: (4, 5)}
    assert table.take(PeerMessage("b", leaves=True), 11.0, 0.0) is None
    assert (table.totals, table.peers, table.changed) == ({}, {}, {1, 2})


def test_silence_is_measured_by_our_clock_and_theirs_is_shown() -> None:
    table = PeerTable("me", LEASE_S)
    message = PeerMessage("a", whole=True, name="a", version="9.9", sent_s=5_000.0)
    table.take(message, 1.0, 1_000.0)
    assert table.sweep(1.0 + LEASE_S / 2) == []
    assert table.peers["a"].row(1.25, ()) == PeerRow(
        name="a", version="9.9", seen_s=0.25, in_flight=0, queued_tokens=0,
        clock_skew_s=4_000.0, unknown_replicas=0,
    )  # fmt: skip
    assert table.news_age_s(1.5) == 0.5
    assert PeerTable("me", LEASE_S).news_age_s(1.5) is None


def test_memory_is_bounded() -> None:
    table = PeerTable("me", LEASE_S)
    table.take(news("a", dict.fromkeys(range(REPLICA_LIMIT + 5), (1, 1))), 0.0, 0.0)
    assert len(table.totals) == REPLICA_LIMIT
    for number in range(PEER_LIMIT + 5):
        table.take(news(f"gateway {number}", {}), 0.0, 0.0)
    assert len(table.peers) == PEER_LIMIT


LOADS = st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 3), st.integers(0, 3)))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), LOADS)))
def test_sums_are_those_of_the_last_words(said: list[tuple[str, bool, dict[int, Load]]]) -> None:
    table = PeerTable("me", LEASE_S)
    has: dict[str, dict[int, Load]] = {}
    for gateway, whole, loads in said:
        table.changed.clear()
        before = dict(table.totals)
        table.take(news(gateway, loads, whole=whole), 0.0, 0.0)
        has[gateway] = ({} if whole else has.get(gateway, {})) | loads
        every = {key for held in has.values() for key in held}
        sums = {
            key: tuple(sum(held.get(key, (0, 0))[at] for held in has.values()) for at in (0, 1))
            for key in every
        }
        assert table.totals == {key: total for key, total in sums.items() if total != (0, 0)}
        keys = before.keys() | table.totals.keys()
        differ = {key for key in keys if before.get(key) != table.totals.get(key)}
        assert differ <= table.changed

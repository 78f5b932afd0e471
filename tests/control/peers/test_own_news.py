"""What is sent: the changes, everything now and then, a sign of life in between. And what others
make of it, who may be of another version."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.control.peers.own_news import WHOLE_INTERVAL_S, OwnNews
from tokenlane.control.peers.peer_message import (
    FORMAT,
    Load,
    PeerMessage,
    decode,
    encode,
    packed,
    replica_key,
    unpacked,
)
from tokenlane.control.peers.peer_table import PeerTable

LEASE_S = 0.8
ME = PeerMessage("me", name="here", version="1.2")


def test_only_what_changed_is_sent() -> None:
    own = OwnNews(ME, LEASE_S)
    first = own.due({1: (1, 5), 2: (0, 0)}, {}, 0.0, 77.0)
    assert first == PeerMessage(
        "me", loads=packed([(1, (1, 5))]), whole=True, name="here", version="1.2", sent_s=77.0
    )
    assert own.due({1: (1, 5), 2: (0, 0)}, {}, 0.1, 77.1) is None
    second = own.due({1: (1, 5), 2: (3, 0)}, {}, 0.15, 77.1)
    assert second == PeerMessage("me", loads=packed([(2, (3, 0))]))
    # The replica is not ours any more, whatever ran there.
    assert own.due({2: (3, 0)}, {}, 0.2, 77.2) == PeerMessage("me", loads=packed([(1, (0, 0))]))


def test_claims_are_told_when_they_change() -> None:
    own = OwnNews(ME, LEASE_S)
    first = own.due({}, {"t/requests": (3, 2), "u/requests": (0, 0)}, 0.0, 0.0)
    assert first is not None
    assert first.places == {"t/requests": (3, 2)}
    assert own.due({}, {"t/requests": (3, 2)}, 0.1, 0.0) is None
    assert own.due({}, {"t/requests": (0, 0)}, 0.15, 0.0) == PeerMessage(
        "me", places={"t/requests": (0, 0)}
    )


def test_a_sign_of_life_keeps_the_lease() -> None:
    own = OwnNews(ME, LEASE_S)
    assert own.due({}, {}, 0.0, 0.0) is not None
    sent_s = [at / 100 for at in range(1, 100) if own.due({}, {}, at / 100, 0.0) is not None]
    gaps_s = [after - before for before, after in zip([0.0, *sent_s], sent_s)]
    assert max(gaps_s) <= LEASE_S / 3


def test_everything_is_sent_again_when_somebody_may_not_know_it() -> None:
    own = OwnNews(ME, LEASE_S)
    own.due({1: (1, 1)}, {}, 0.0, 0.0)
    own.again()
    again = own.due({1: (1, 1)}, {}, 0.1, 0.1)
    assert again is not None
    assert again.whole
    later = own.due({1: (1, 1)}, {}, 0.1 + WHOLE_INTERVAL_S, 0.0)
    assert later is not None
    assert later.whole


HISTORY = st.lists(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 9), st.integers(0, 2**40)))
)


@given(HISTORY)
def test_whoever_reads_all_of_it_has_all_of_it(history: list[dict[int, Load]]) -> None:
    own, table = OwnNews(ME, LEASE_S), PeerTable("other", LEASE_S)
    for tick, loads in enumerate(history):
        message = own.due(loads, {}, tick * 0.05, 0.0)
        if message is not None:
            told = decode(encode(message))
            assert told is not None
            table.take(told, tick * 0.05, 0.0)
        assert table.totals == {
            key: (requests, min(tokens, 2**32 - 1))
            for key, (requests, tokens) in loads.items()
            if requests or tokens
        }


class Tomorrow(PeerMessage, frozen=True, omit_defaults=True):
    """A message of a later version, with more in it."""

    weather: str = ""


def test_versions_side_by_side() -> None:
    told = decode(encode(Tomorrow("a", loads=packed([(1, (2, 3))]), weather="fine")))
    assert told == PeerMessage("a", loads=packed([(1, (2, 3))]))
    assert decode(encode(PeerMessage("a", format=FORMAT + 1))) is None
    old = msgspec.msgpack.encode({"gateway": "a"})
    assert decode(old) == PeerMessage("a")


def test_what_is_no_message_is_none() -> None:
    no_text = b"\x81\xa7gateway\xa1\xff"
    nested = b"\x82\xa7gateway\xa1a\xa4more" + b"\x91" * 100_000 + b"\xc0"
    odd = encode(PeerMessage("a", loads=b"odd"))
    for data in (b"", b"\xc1", b"hello", no_text, nested, odd):
        assert decode(data) is None


def test_replicas_have_one_name_everywhere() -> None:
    # Gateways of any version must call it so.
    assert replica_key("10.0.0.1:8000") == 0xB11BD3B37E703127
    assert list(unpacked(packed([(7, (1, 2))]))) == [(7, 1, 2)]

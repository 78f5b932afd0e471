"""Departures: what was there and is not for long, told once."""

from tokenlane.telemetry.metrics.departures import KEPT_S, SHOWN_S, Departures


def test_what_is_gone_for_long_departs_once() -> None:
    departures = Departures(10.0)
    assert departures.tick({"replica": {"a", "b"}, "model": {"a"}}, 0.0) == {}
    assert departures.tick({"replica": {"b"}, "model": {"a"}}, 9.0) == {}
    assert departures.tick({"replica": {"b"}, "model": set()}, 10.0) == {"replica": {"a"}}
    assert departures.tick({"replica": {"b"}, "model": set()}, 19.0) == {"model": {"a"}}
    assert departures.tick({"replica": {"b"}, "model": set()}, 99.0) == {}


def test_who_returns_in_time_stays() -> None:
    departures = Departures(10.0)
    for now_s, present in ((0.0, {"a"}), (9.0, set()), (9.5, {"a"}), (19.0, set())):
        assert departures.tick({"replica": present}, now_s) == {}
    assert departures.tick({"replica": set()}, 19.5) == {"replica": {"a"}}


def test_it_is_hidden_before_it_is_given_up() -> None:
    assert SHOWN_S < KEPT_S

"""Bursts compare places to encode, not encoders."""

from bench.experiments import bursts


def test_the_twin_has_a_gateway_with_its_encoder_beside_it() -> None:
    ours, twin = bursts.RUNS[bursts.SAME_ENCODER], bursts.RUNS[bursts.TWIN]
    assert ours["fast_engines"] is twin["fast_engines"] is False
    differ = {name for name in ours | twin if ours.get(name) != twin.get(name)}
    assert differ == {"thread_hop_s"}
    assert bursts.RUNS[bursts.AS_SHIPPED] == {}

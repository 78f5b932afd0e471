"""The fleet's state: what a sequence of probes makes of a replica."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.config.settings import ControlSettings
from tokenlane.control.fleet_table import FleetTable, Probe, ReplicaChange, base_url, models
from tokenlane.control.replica_metrics import Scrape
from tokenlane.errors import ConfigError

GOOD = Probe("ok")
BAD = Probe("refused")


def table(
    *, rise: int = 1, fall: int = 2, backends: tuple[str, ...] = ("http://a:1",)
) -> FleetTable:
    return FleetTable(backends, ControlSettings(rise_count=rise, fall_count=fall))


@pytest.mark.parametrize(
    ("rise", "fall", "probes", "ups"),
    [
        (1, 2, "+--+", "1101"),
        (1, 1, "+-+-", "1010"),
        (2, 2, "++--", "0110"),
        (3, 2, "++-+++", "000001"),
        (1, 3, "+--+---", "1111110"),
        (1, 2, "---", "000"),
    ],
)
def test_rise_and_fall(rise: int, fall: int, probes: str, ups: str) -> None:
    fleet = table(rise=rise, fall=fall)
    seen = ""
    for mark in probes:
        fleet.observe(0, GOOD if mark == "+" else BAD)
        seen += "01"[fleet.state.replicas[0].up]
    assert seen == ups


def test_a_probe_that_this_process_could_not_send_says_nothing() -> None:
    fleet = table(rise=2, fall=2)
    for reason, up in (
        ("ok", False), ("descriptors", False), ("ok", True), ("refused", True),
        *[("descriptors", True)] * 5, ("refused", False),
    ):  # fmt: skip
        before = fleet.state
        change = fleet.observe(0, Probe(reason))
        assert fleet.state.replicas[0].up == up
        assert fleet.probes["a:1"].reason == reason
        if reason == "descriptors":
            assert (change, fleet.state) == (ReplicaChange.NONE, before)


@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.booleans(), max_size=30))
def test_up_needs_a_run_of_good_and_down_a_run_of_bad(
    rise: int, fall: int, probes: list[bool]
) -> None:
    fleet = table(rise=rise, fall=fall)
    was_up = False
    for index, good in enumerate(probes, 1):
        fleet.observe(0, GOOD if good else BAD)
        up = fleet.state.replicas[0].up
        if up and not was_up:
            assert all(probes[index - rise : index])
            assert index >= rise
        if was_up and not up:
            assert not any(probes[index - fall : index])
        was_up = up


@pytest.mark.row("U11")
@pytest.mark.parametrize(
    ("reason", "answered", "ups"),
    [
        ("timeout", (5, 6, 9, 10), "1111"),
        # Nobody knows yet whether the first is one of a row.
        ("timeout", (5, 5), "10"),
        ("timeout", (5, 6, 6, 7, 7, 7), "111110"),
        # What was answered before it passed again is no answer to what comes.
        ("timeout", (5, None, 8, 8), "1110"),
        ("timeout", (0, 0), "10"),
        # Back only by a probe that passes.
        ("timeout", (5, 5, 6, 7), "1000"),
        ("refused", (5, 6, 7), "100"),
        ("status", (5, 6, 7), "100"),
    ],
)
def test_a_probe_that_ran_out_of_time_does_not_outweigh_answers(
    reason: str, answered: tuple[int | None, ...], ups: str
) -> None:
    fleet = table()
    fleet.observe(0, GOOD)
    seen = ""
    for answers in answered:
        fleet.observe(0, GOOD if answers is None else Probe(reason), answers or 0)
        seen += "01"[fleet.state.replicas[0].up]
    assert seen == ups


def test_what_a_probe_did_not_learn_stays() -> None:
    fleet = table()
    full = Probe("ok", ("m", "n"), 4096, Scrape(1, 2, 0.5, 32, 100, 1000.0))
    assert fleet.observe(0, full) is ReplicaChange.SHAPE
    learned = fleet.state.replicas[0]
    assert (learned.models, learned.max_model_tokens, learned.block_tokens) == (
        ("m", "n"),
        4096,
        32,
    )
    assert (learned.cache_blocks, learned.started_s, learned.running) == (100, 1000.0, 1)

    assert fleet.observe(0, GOOD) is ReplicaChange.NONE
    assert fleet.observe(0, Probe("ok", None, None, Scrape())) is ReplicaChange.LOAD
    kept = fleet.state.replicas[0]
    assert kept == msgspec.structs.replace(learned, running=0, waiting=0, kv_usage=0.0)
    assert fleet.observe(0, Probe("timeout")) is ReplicaChange.NONE
    assert fleet.state.replicas[0].models == ("m", "n")


def test_names_that_come_and_go_are_not_kept() -> None:
    fleet = table(backends=("http://a:1", "http://b:1"))
    fleet.observe(0, Probe("ok", ("m",), roots={"m": "/m"}))
    for number in range(10):
        fleet.observe(1, Probe("ok", (f"{number}",), roots={f"{number}": "/x"}))
    assert fleet.roots == {"m": "/m", "9": "/x"}


def test_the_first_refused_probe_says_that_the_cache_is_gone() -> None:
    fleet = table()
    fleet.observe(0, GOOD)
    assert fleet.observe(0, Probe("refused")) is ReplicaChange.SHAPE
    assert fleet.state.replicas[0].up  # not down yet
    assert fleet.state.replicas[0].incarnation == 1
    fleet.observe(0, Probe("refused"))
    fleet.observe(0, GOOD)
    fleet.observe(0, Probe("timeout"))
    assert fleet.state.replicas[0].incarnation == 1
    fleet.observe(0, Probe("refused"))
    assert fleet.state.replicas[0].incarnation == 2
    assert table().observe(0, Probe("refused")) is ReplicaChange.NONE  # never seen: nothing to lose


def test_a_capacity_may_be_learned_and_is_no_news_unless_it_grows() -> None:
    fleet = table()
    fleet.observe(0, GOOD)
    assert fleet.learned(0, 1000) is ReplicaChange.SHAPE
    assert fleet.learned(0, 1040) is ReplicaChange.NONE
    assert fleet.learned(0, 1100) is ReplicaChange.SHAPE
    assert fleet.state.replicas[0].cache_blocks == 1100


def test_a_restart_is_a_change_of_shape() -> None:
    fleet = table()
    fleet.observe(0, Probe("ok", scrape=Scrape(started_s=1000.0)))
    assert fleet.observe(0, Probe("ok", scrape=Scrape(started_s=2000.0))) is ReplicaChange.SHAPE


def test_versions_grow_with_changes_only() -> None:
    fleet = table(backends=("http://a:1", "http://b:2"))
    first = fleet.state
    assert fleet.observe(0, BAD) is ReplicaChange.NONE
    assert fleet.state is first
    fleet.observe(1, GOOD)
    assert fleet.state.version == first.version + 1
    assert [replica.up for replica in fleet.state.replicas] == [False, True]
    assert repr(fleet) == "<FleetTable v2 a:1=down b:2=up>"


@pytest.mark.parametrize(
    ("backend", "url"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://Host.Example:8000/", "http://host.example:8000"),
        ("http://host", "http://host:80"),
        ("https://host", "https://host:443"),
        ("https://host:8000", "https://host:8000"),
        ("http://[::1]:9", "http://[::1]:9"),
        ("http://[fe80::1%eth0]:9", "http://[fe80::1%eth0]:9"),
        ("http://vllm_0.a-b.svc:9", "http://vllm_0.a-b.svc:9"),
        ("http://xn--bcher-kva:9", "http://xn--bcher-kva:9"),
    ],
)
def test_backends(backend: str, url: str) -> None:
    assert base_url(backend) == url


@pytest.mark.parametrize(
    "backend",
    [
        "10.0.0.1:8000",
        "http://:8000",
        "http://host:99999",
        "http://host:0",
        "http://host:8000/v1",
        "http://host:8000?x",
        "http://user:secret@host:8000",
        "http://[::1:9",
        "http://gpu\u20131:8000",
        "http://b\u00fccher:8000",
        "http://a b:8000",
        "http://a;b:8000",
        "",
    ],
)
def test_backends_refused(backend: str) -> None:
    with pytest.raises(ConfigError) as raised:
        base_url(backend)
    assert "secret" not in str(raised.value)


def test_a_backend_listed_twice() -> None:
    with pytest.raises(ConfigError, match="listed twice"):
        table(backends=("http://a:1", "http://A:1/"))


def test_models_of_replicas_that_are_up() -> None:
    fleet = table(backends=("http://a:1", "http://b:2", "http://c:3"))
    fleet.observe(0, Probe("ok", ("m",)))
    fleet.observe(1, Probe("ok", ("m", "n")))
    fleet.observe(2, Probe("refused", ("m",)))
    assert models(fleet.replicas) == {"m": ["a:1", "b:2"], "n": ["b:2"]}

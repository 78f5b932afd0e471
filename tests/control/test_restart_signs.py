"""What says that another process answers, and what does not."""

import pytest

from tokenlane.config.settings import ControlSettings
from tokenlane.control.fleet_table import Probe, Track, observe
from tokenlane.control.replica_metrics import Scrape
from tokenlane.control.restart_signs import Signs, is_other_process, latest
from tokenlane.fleet_state import Proof, ReplicaState

KNOWN = Signs(at_s=100.0, started_s=7.0, version="0.32.0", created_s=5000.0, roots={"m": "/a"})


@pytest.mark.parametrize(
    ("now", "other"),
    [
        (KNOWN, False),
        (Signs(), False),
        (Signs(at_s=101.0, started_s=8.0), True),
        (Signs(at_s=101.0, version="0.33.0"), True),
        (Signs(at_s=101.0, roots={"m": "/b"}), True),
        (Signs(at_s=101.0, roots={"n": "/b"}), False),
        # Made for each answer, and moves with the clock.
        (Signs(at_s=160.0, created_s=5060.0), False),
        (Signs(at_s=101.0, created_s=5060.0), True),
        (Signs(at_s=160.0, created_s=5000.0), False),
    ],
)
def test_signs(now: Signs, other: bool) -> None:
    assert is_other_process(KNOWN, now) is other


def test_what_a_probe_did_not_learn_hides_nothing() -> None:
    after = latest(KNOWN, Signs(at_s=130.0))
    assert after == KNOWN
    assert is_other_process(after, Signs(at_s=131.0, created_s=5000.0 + 60.0))


@pytest.mark.parametrize(
    "probe",
    [
        Probe("refused"),
        Probe("ok", scrape=Scrape(started_s=8.0)),
        Probe("ok", version="0.33.0"),
        Probe("ok", roots={"m": "/b"}),
    ],
)
def test_another_process_has_proven_nothing(probe: Probe) -> None:
    state = ReplicaState(id="a", slot=0, url="http://a", up=True, proofs={"m": Proof(proven=63)})
    track = Track(state, gone=False, signs=KNOWN)
    after = observe(track, probe, ControlSettings())
    assert (after.state.process, after.state.proofs) == (1, {})
    assert observe(track, Probe("ok"), ControlSettings()).state.proofs == state.proofs
    assert observe(track, Probe("timeout"), ControlSettings()).state.proofs == state.proofs


def test_one_that_rises_again_may_be_another() -> None:
    state = ReplicaState(id="a", slot=0, url="http://a", proofs={"m": Proof(proven=63)})
    track = Track(state, gone=False, signs=KNOWN)
    risen = observe(track, Probe("ok"), ControlSettings())
    assert (risen.state.up, risen.state.process) == (True, 1)
    known = Probe("ok", scrape=Scrape(started_s=KNOWN.started_s))
    assert observe(track, known, ControlSettings()).state.proofs == state.proofs


def test_names_are_forgotten_before_they_are_too_many() -> None:
    known = Signs()
    for turn in range(50):
        names = {f"model-{turn}-{number}": "/a" for number in range(1000)}
        known = latest(known, Signs(roots=names))
        assert names.items() <= known.roots.items()
        assert len(known.roots) <= 4096

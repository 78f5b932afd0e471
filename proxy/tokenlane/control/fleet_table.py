"""What is known of the replicas: probe results in, snapshots out. Pure.

Invariants:
- A replica goes down after `fall_count` failed probes in a row and up after `rise_count` good
  ones; a replica never seen is down.
- A probe that ran out of time does not count, and ends the row, where the replica has answered
  requests since another that did: it is busy, or this machine is, and it may be all there is.
- A probe that this process had no descriptor for says nothing of the replica.
- What a probe did not learn (no model list, no metrics) stays as it was last known.
- Every change makes a new version; an unchanged fleet is the same object.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from urllib.parse import urlsplit

import msgspec

from tokenlane.config.settings import ControlSettings
from tokenlane.control.replica_metrics import Scrape
from tokenlane.control.restart_signs import Signs, is_other_process, is_same_process, latest
from tokenlane.errors import ConfigError
from tokenlane.fleet_state import FleetState, ProofNews, ReplicaState
from tokenlane.runtime.ports import url_of


class Probe(msgspec.Struct, frozen=True):
    """One look at a replica.

    reason: `ok`, or why it failed (metric label): a key of ADVICE. status: HTTP's, where that is
    why.
    models and scrape: None if they could not be read. adapters: those of the models, with
    the model of each. roots: by model, the folder or the hub's name that the replica has it from.
    at_s, version, created_s: as Signs has them.
    """

    reason: str
    models: tuple[str, ...] | None = None
    max_model_tokens: int | None = None
    scrape: Scrape | None = None
    adapters: dict[str, str] = {}
    roots: dict[str, str] = {}
    at_s: float = 0.0
    version: str = ""
    created_s: float = 0.0
    status: int = 0

    @property
    def good(self) -> bool:
        """The health probe passed."""
        return self.reason == "ok"

    def told(self, sentences: Mapping[str, str]) -> str:
        """Return the sentence about why it failed; empty where it did not. sentences: by reason."""
        return sentences.get(self.reason, "").format(status=self.status)

    @property
    def signs(self) -> Signs:
        """What it says of the replica's process."""
        started_s = self.scrape.started_s if self.scrape is not None else 0.0
        return Signs(self.at_s, started_s, self.version, self.created_s, self.roots)


# Why a probe failed, and what may help.
ADVICE = {
    "refused": "nothing listens there; is vLLM running, and is the port right?",
    "unreachable": "there is no way to it; is the host's name right?",
    "tls": "no TLS with it; is it http://, or is its CA not in upstream.tls_ca_file?",
    "timeout": "no answer in time; is it still loading, or does a firewall drop packets?",
    "status": "its /health answers {status}; is it vLLM? Then its log says why",
    "descriptors": "this process has no file descriptor left; is its limit too low (ulimit -n)?",
    "protocol": "what answers does not speak vLLM's HTTP; is it the right port?",
}


# A learned capacity that grows by less is no news.
_GROWTH = 1.05


class ReplicaChange(IntEnum):
    """How much an observation changed: what workers must know at once, or may know soon."""

    NONE = 0
    LOAD = 1
    SHAPE = 2


class Track(msgspec.Struct, frozen=True):
    """A replica and how many probes in a row have passed or failed. gone: refused since the last
    that passed, or never seen. signs: of its process, as last seen. answers: requests that it had
    answered by the last probe, if that ran out of time, else -1."""

    state: ReplicaState
    passes: int = 0
    fails: int = 0
    gone: bool = True
    signs: Signs = Signs()
    answers: int = -1


def observe(track: Track, probe: Probe, settings: ControlSettings, answers: int = 0) -> Track:
    """The replica after one more probe. answers: requests it has answered, where that ran out of
    time."""
    state = track.state
    if probe.reason == "descriptors":
        return track
    if not probe.good:
        late = probe.reason == "timeout"
        fails = 0 if late and 0 <= track.answers < answers else track.fails + 1
        incarnation = state.incarnation
        if probe.reason == "refused" and not track.gone:
            # Nothing listens: the process is gone, and its cache with it, whoever comes next.
            incarnation += 1
            state = _another_process(state)
        state = msgspec.structs.replace(state, incarnation=incarnation)
        if not state.up or fails >= settings.fall_count:
            # Nothing runs in what is down, whatever it said last.
            state = msgspec.structs.replace(state, up=False, running=0, waiting=0, kv_usage=0.0)
        gone = track.gone or probe.reason == "refused"
        counted = answers if late else -1
        return Track(state, 0, fails, gone=gone, signs=track.signs, answers=counted)
    passes = track.passes + 1
    rises = not state.up and passes >= settings.rise_count
    if is_other_process(track.signs, probe.signs) or (
        rises and not is_same_process(track.signs, probe.signs)
    ):
        state = _another_process(state)
    state = msgspec.structs.replace(state, up=state.up or passes >= settings.rise_count)
    if probe.models is not None:
        state = msgspec.structs.replace(
            state,
            models=probe.models,
            max_model_tokens=probe.max_model_tokens,
            adapters=probe.adapters,
        )
    seen = probe.scrape
    if seen is not None:
        state = msgspec.structs.replace(
            state,
            running=seen.running,
            waiting=seen.waiting,
            kv_usage=seen.kv_usage,
            block_tokens=seen.block_tokens or state.block_tokens,
            cache_blocks=seen.cache_blocks or state.cache_blocks,
            started_s=seen.started_s or state.started_s,
        )
    return Track(state, passes, 0, gone=False, signs=latest(track.signs, probe.signs))


def _another_process(state: ReplicaState) -> ReplicaState:
    """What was proven of the ids was proven by the last one."""
    return msgspec.structs.replace(state, process=state.process + 1, proofs={})


def compare(before: ReplicaState, after: ReplicaState) -> ReplicaChange:
    """How much the workers care."""
    if before == after:
        return ReplicaChange.NONE
    same_load = msgspec.structs.replace(
        after, running=before.running, waiting=before.waiting, kv_usage=before.kv_usage
    )
    return ReplicaChange.LOAD if same_load == before else ReplicaChange.SHAPE


def base_url(backend: str) -> str:
    """A backend as scheme, host and port. ConfigError says what is wrong with it."""
    if "@" in backend:  # first: what follows repeats it
        raise ConfigError("the URL must not carry a user name or password")
    try:
        parts = urlsplit(backend)
        port = parts.port
    except ValueError:
        raise ConfigError(f"{backend!r} is not a URL; it must look like http://HOST:PORT") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        bare = re.fullmatch(r"[\w.-]+:[0-9]{1,5}", backend)
        meant = f"; did you mean http://{backend}?" if bare else ""
        raise ConfigError(f"{backend!r} must look like http://HOST:PORT{meant}")
    if not re.fullmatch(r"[\w.:%-]+", parts.hostname, re.ASCII):  # it becomes a header of requests
        raise ConfigError(
            f"{backend!a}: its host has characters that no host's name has; a name in other"
            " letters is written in punycode (xn--...)"
        )
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise ConfigError(
            f"{backend!r} must end after its port; did you mean {parts.scheme}://{parts.netloc}?"
        )
    port = port or (443 if parts.scheme == "https" else 80)
    return url_of(parts.hostname, port, parts.scheme)


def host_of(backend: str) -> str:
    """Return the host and port of a backend, which are its id. Raises ConfigError."""
    return base_url(backend).partition("://")[2]


class FleetTable:
    """All replicas by slot. Replica ids are `HOST:PORT`. scrapes: by id, what the replica's page of
    metrics said last; for people, not for workers. state: the latest snapshot. probes: by id, the
    last one. roots: by model, where the replicas have it from.

    A slot that nobody has is no mistake: a probe may end after its replica was removed.
    """

    def __init__(self, backends: Iterable[str], settings: ControlSettings) -> None:
        self.settings = settings
        self._tracks: dict[int, Track] = {}
        self.state = FleetState(1, ())
        for slot, backend in enumerate(backends):
            self.add(slot, backend)
        self.state = FleetState(1, self.replicas)
        self.scrapes: dict[str, Scrape] = {}
        self.probes: dict[str, Probe] = {}
        self.roots: dict[str, str] = {}

    @property
    def replicas(self) -> tuple[ReplicaState, ...]:
        """Every replica, by slot."""
        return tuple(self._tracks[slot].state for slot in sorted(self._tracks))

    def get(self, slot: int) -> ReplicaState | None:
        """The replica that has this slot."""
        track = self._tracks.get(slot)
        return track.state if track is not None else None

    def add(self, slot: int, backend: str) -> ReplicaState:
        """A new replica in a slot that is free. ConfigError where its URL is none, or there."""
        url = base_url(backend)
        state = ReplicaState(id=host_of(url), slot=slot, url=url)
        if any(track.state.id == state.id for track in self._tracks.values()):
            raise ConfigError(f"backend {url} is listed twice")
        if slot in self._tracks:
            raise ValueError("the slot is taken")
        self._tracks[slot] = Track(state)
        self._next()
        return state

    def remove(self, slot: int) -> None:
        """The replica is no longer of the fleet."""
        gone = self._tracks.pop(slot, None)
        if gone is not None:
            self.scrapes.pop(gone.state.id, None)
            self.probes.pop(gone.state.id, None)
            self._next()

    def drain(self, slot: int, draining: bool) -> None:
        """Whether the replica gets nothing new from now on."""
        track = self._tracks.get(slot)
        if track is not None and track.state.draining != draining:
            self._replace(track, msgspec.structs.replace(track.state, draining=draining))

    def observe(self, slot: int, probe: Probe, answers: int = 0) -> ReplicaChange:
        """Takes one probe's result in. answers: requests that the replica has answered so far;
        asked for where the probe ran out of time."""
        before = self._tracks.get(slot)
        if before is None:
            return ReplicaChange.NONE
        self.probes[before.state.id] = probe
        if probe.scrape is not None:
            self.scrapes[before.state.id] = probe.scrape
        after = observe(before, probe, self.settings, answers)
        self._tracks[slot] = after
        if not probe.roots.items() <= self.roots.items():
            served = {name for track in self._tracks.values() for name in track.state.models}
            roots = {**self.roots, **probe.roots}
            self.roots = {name: root for name, root in roots.items() if name in served}
        change = compare(before.state, after.state)
        if change:
            self._next()
        return change

    def learned(self, slot: int, cache_blocks: int) -> ReplicaChange:
        """A replica that does not report its cache's size was seen to hold so many blocks."""
        track = self._tracks.get(slot)
        if track is None or cache_blocks <= (track.state.cache_blocks or 0) * _GROWTH:
            return ReplicaChange.NONE
        self._replace(track, msgspec.structs.replace(track.state, cache_blocks=cache_blocks))
        return ReplicaChange.SHAPE

    def proof(self, news: ProofNews) -> bool:
        """Takes in what a worker found out about a replica's ids; False if that is old."""
        track = self._tracks.get(news.slot)
        if track is None:
            return False
        state = track.state.with_news(news)
        if state is track.state:
            return False
        self._replace(track, state)
        return True

    def _replace(self, track: Track, state: ReplicaState) -> None:
        self._tracks[state.slot] = msgspec.structs.replace(track, state=state)
        self._next()

    def _next(self) -> None:
        self.state = FleetState(self.state.version + 1, self.replicas)

    def __repr__(self) -> str:
        rows = (f"{state.id}={'up' if state.up else 'down'}" for state in self.replicas)
        return f"<FleetTable v{self.state.version} {' '.join(rows)}>"


def models(replicas: Sequence[ReplicaState]) -> dict[str, list[str]]:
    """Model name -> ids of the replicas up that serve it."""
    served: dict[str, list[str]] = {}
    for replica in replicas:
        if replica.up:
            for model in replica.models:
                served.setdefault(model, []).append(replica.id)
    return served

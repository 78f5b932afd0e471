"""Watches the counters, so that the live page has rates and their history at once.

Invariants:
- One reading a second, in the control plane; the data loops do nothing for it.
- Memory is bounded: a window of readings, a few numbers for each second before it, and
  each replica's hour (`flows`).
- How many people look changes nothing: they are shown what was read anyway.
"""

import logging
import time
from collections import deque
from collections.abc import Iterable
from itertools import count

from tokenlane import __version__
from tokenlane.config import options
from tokenlane.control.accelerators import Accelerators
from tokenlane.control.dashboard import rows
from tokenlane.control.dashboard.events import KEEP_S, EventLog
from tokenlane.control.dashboard.flows import Flows
from tokenlane.control.dashboard.live import (
    DecisionRow,
    FleetRow,
    Live,
    Numbers,
    ReplicaRow,
    SettingRow,
)
from tokenlane.control.dashboard.rates import Reading, Window, ratio, short
from tokenlane.control.dashboard.savings import Savings
from tokenlane.control.dashboard.verdict import WHY, verdict
from tokenlane.control.front_end import FrontEnds
from tokenlane.control.gateway_state import GatewayState
from tokenlane.control.reload import ConfigRow
from tokenlane.fleet_state import ReplicaState
from tokenlane.routing.candidates import LEFT_OUT_WORDS, LeftOut
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.routing_sample import RoutingSample

PERIOD_S = 1.0
WINDOW_PERIODS = 10
HISTORY_PERIODS = 180
DECISION_LIMIT = 40
CUT = "answers cut short"
LATELY_S = 300.0
# The numbers that have a history.
_EACH_SECOND = (
    "requests_per_s", "failed_per_s", "in_flight", "queued_tokens", "input_tokens_per_s",
    "output_tokens_per_s", "late_p99_s", "late_worst_s",
)  # fmt: skip
# Few requests end in one second: their quantiles and shares are over the window.
_OVER_WINDOW = ("hit_rate", "ttft_p50_s", "ttft_p99_s")
# Of what leaves out a replica that is up. It may also be full or starting: that is no news.
_TROUBLES = (LeftOut.REFUSED, LeftOut.EJECTED)

log = logging.getLogger("watch")


class RateHistory:
    """The readings and what they say. `tick` once every PERIOD_S."""

    def __init__(self, state: GatewayState) -> None:
        self._gateway = state
        self._table, self._board = state.table, state.board
        self._readings: deque[Reading] = deque(maxlen=WINDOW_PERIODS + 1)
        self._beats: deque[dict[int, float]] = deque(maxlen=WINDOW_PERIODS)
        self._savings = Savings(WINDOW_PERIODS)
        self._accelerators = Accelerators()
        self.front_ends = FrontEnds()
        self._distrusted: dict[str, str] = {}
        self._series: dict[str, deque[float | None]] = {}
        self._decisions: deque[DecisionRow] = deque(maxlen=DECISION_LIMIT)
        self._numbers = count(1)
        self._events = EventLog()
        # By replica: state, why, since when (Unix time).
        self._states: dict[str, tuple[str, str, float | None]] = {}
        self._slow: dict[str, float] = {}
        self._read(time.monotonic())
        self.flows = Flows(self._readings[-1])
        self._notice_states(time.monotonic(), None)

    def tick(self, at_s: float) -> None:
        """One more reading. at_s: monotonic seconds."""
        self._read(at_s)
        replicas = (replica.id for replica in self._table.replicas)
        self.flows.see(self._readings[-1], self._savings.counted, replicas)
        last = Window(self._readings[-2], self._readings[-1])
        # A worker's beats of a second may come in the next one.
        worst = self._worst(1) or self._worst(2)
        now, point = self._now(self._window, self._worst()), self._now(last, worst)
        for names, numbers in ((_EACH_SECOND, point), (_OVER_WINDOW, now)):
            for name in names:
                points = self._series.setdefault(name, deque(maxlen=HISTORY_PERIODS))
                points.append(short(getattr(numbers, name)))
        self._notice(last, at_s, time.time())

    def routed(self, samples: Iterable[RoutingSample]) -> None:
        """Takes samples of routed requests in."""
        names = {replica.slot: replica.id for replica in self._table.replicas}
        for sample in samples:
            self._decisions.append(rows.decision(next(self._numbers), sample, names))

    def live(
        self,
        *,
        uptime_s: float,
        unready: str | None,
        config: ConfigRow | None = None,
        fleet: FleetRow | None = None,
    ) -> Live:
        """Everything, as it is now."""
        gateway, shown = self._gateway, options.shown(self._gateway.settings)
        window, worst, at_s = self._window, self._worst(), self._readings[-1].at_s
        replicas = [self._replica(replica, window) for replica in self._table.replicas]
        cut, lately = (self._events.counted(CUT, at_s, of_s) for of_s in (KEEP_S, LATELY_S))
        settings = [SettingRow(path=at, value=text, is_default=usual) for at, text, usual in shown]
        return Live(
            verdict=verdict(unready, replicas, cut, lately),
            events=self._events.rows(at_s),
            version=__version__,
            url=gateway.urls[0],
            policy=gateway.settings.routing.policy,
            at_s=time.time(),
            uptime_s=round(uptime_s, 1),
            unready=unready,
            window_s=round(window.span_s, 1),
            period_s=PERIOD_S,
            now=self._now(window, worst),
            saved=self._savings.row(window.span_s),
            series={name: list(points) for name, points in self._series.items()},
            replicas=replicas,
            workers=[rows.worker(one, window, worst.get(one.number)) for one in gateway.workers],
            stalls=rows.stalls(window, gateway.stalls.longest()),
            rungs=rows.rungs(window),
            reasons=rows.counts(window.by(families.ROUTED.name, "reason")),
            bails=rows.counts(window.by(families.BAILS.name, "reason")),
            forwarded=rows.counts(window.by(families.FORWARDED.name, "as")),
            as_text=rows.counts(window.by(families.FORWARDED.name, "reason", **{"as": "text"})),
            models=rows.models(window),
            doubts=gateway.doubts,
            decisions=sorted(self._decisions, key=lambda row: (-row.at_s, -row.number)),
            config=config,
            fleet=fleet,
            settings=settings,
        )

    def _read(self, at_s: float) -> None:
        self._readings.append(Reading(at_s, self._gateway.totals.cells()))
        self._window = Window(self._readings[0], self._readings[-1])
        self._savings.see(self._table.scrapes)
        self._beats.append(self._gateway.stalls.take_worst())
        replicas = self._table.replicas
        in_flight = [
            (one.id, self._board.load(one.slot).requests + self._board.peers(one.slot).requests)
            for one in replicas
        ]
        busy = self._accelerators.of(replicas)
        self.front_ends.see(in_flight, self._table.scrapes, busy)

    def _worst(self, periods: int = WINDOW_PERIODS) -> dict[int, float]:
        """Return by worker how late its latest heartbeat of the last periods was."""
        lately = list(self._beats)[-periods:]
        ascending = sorted((late_s, number) for beats in lately for number, late_s in beats.items())
        return {number: late_s for late_s, number in ascending}

    def _now(self, window: Window, worst: dict[int, float]) -> Numbers:
        worst_s = max(worst.values(), default=None)
        ttft = window.spread(families.TTFT.name)
        loads = [self._board.load(replica.slot) for replica in self._table.replicas]
        return Numbers(
            requests_per_s=round(window.per_s(families.REQUESTS.name), 3),
            failed_per_s=round(rows.failed(window) / window.span_s, 3),
            in_flight=sum(load.requests for load in loads),
            queued_tokens=sum(load.queued_tokens for load in loads),
            connections=int(window.total(families.CONNECTIONS.name)),
            input_tokens_per_s=round(window.per_s(families.PROMPT_TOKENS.name), 1),
            output_tokens_per_s=round(window.per_s(families.OUTPUT_TOKENS.name), 1),
            hit_rate=self._savings.hit_rate(one.id for one in self._table.replicas),
            predicted_ratio=ratio(
                window.count(families.PREDICTED_CACHED.name),
                window.count(families.ACTUAL_CACHED.name),
            ),
            ttft_p50_s=ttft.quantile(0.5),
            ttft_p99_s=ttft.quantile(0.99),
            tpot_p50_s=window.spread(families.TPOT.name).quantile(0.5),
            late_p99_s=rows.late(window, 0.99, worst_s),
            late_worst_s=worst_s,
        )

    def _notice(self, last: Window, at_s: float, wall_s: float) -> None:
        """Record what the last reading shows to have happened."""
        if cut := int(last.count(families.REQUESTS.name, outcome="truncated")):
            self._events.count(CUT, cut, at_s, wall_s)
        self._slow = rows.times_slower(self._window)
        slow = {
            name: f"{times:.0f} times slower than its like" for name, times in self._slow.items()
        }
        self._events.troubles(slow, "as fast as its like again", at_s, wall_s)
        starved = self.front_ends.starved
        for name in self._events.troubles(starved, "its front end keeps up again", at_s, wall_s):
            log.warning("replica %s: %s", name, starved[name])
        self._events.troubles(self._others(), "its ids are proven again", at_s, wall_s)
        self._notice_states(at_s, wall_s)

    def _others(self) -> dict[str, str]:
        """Return the replicas that made other ids, until they have proven theirs."""
        words = {one.id: rows.ids(one.proofs.values()) for one in self._table.replicas}
        self._distrusted = {
            name: "makes other ids than the gateway: its prompts go as text"
            for name, word in words.items()
            if word.startswith("other") or (word == "unproven" and name in self._distrusted)
        }
        return self._distrusted

    def _notice_states(self, at_s: float, wall_s: float | None) -> None:
        """Record which replicas are in another state than before. wall_s: None at the start."""
        left = rows.left_out(self._window)
        states: dict[str, tuple[str, str, float | None]] = {}
        for replica in self._table.replicas:
            state, why = self._state(replica, left)
            before = self._states.get(replica.id, ("", "", None))
            states[replica.id] = state, why, before[2] if before[0] == state else wall_s
            if before[0] != state and wall_s is not None:
                text = f"{replica.id} is {state}" + (f": {why}" if why else "")
                self._events.add(text, "good" if state == "up" else "warn", at_s, wall_s)
        self._states = states

    def _state(self, replica: ReplicaState, left: dict[str, str]) -> tuple[str, str]:
        """Return a replica's state in a word, and why it is not up."""
        if replica.draining:
            return "draining", ""
        if not replica.up:
            seen = self._table.probes.get(replica.id)
            return "down", seen.told(WHY) if seen is not None else ""
        why = left.get(replica.id)
        return (why, LEFT_OUT_WORDS[LeftOut(why)]) if why in _TROUBLES else ("up", "")

    def _replica(self, replica: ReplicaState, window: Window) -> ReplicaRow:
        load, name = self._board.load(replica.slot), replica.id
        state, why, since_s = self._states.get(name, ("down", "", None))
        if state == "up":
            state = rows.left_out(window).get(name, "up")
        blocks, block_tokens = replica.cache_blocks, replica.block_tokens
        return ReplicaRow(
            id=replica.id,
            state=state,
            models=list(replica.models),
            in_flight=load.requests,
            queued_tokens=load.queued_tokens,
            peers_in_flight=self._board.peers(replica.slot).requests,
            running=replica.running,
            waiting=replica.waiting,
            kv_usage=round(replica.kv_usage, 4),
            cache_tokens=blocks * block_tokens if blocks and block_tokens else None,
            hit_rate=self._savings.hit_rate([name]),
            ids=rows.ids(replica.proofs.values()),
            since_s=since_s,
            why=why,
            requests_per_s=round(window.per_s(families.REPLICA_REQUESTS.name, replica=name), 3),
            failed_per_s=round(window.per_s(families.UPSTREAM_FAILURES.name, replica=name), 3),
            ttft_p50_s=window.spread(families.TTFT.name, replica=name).quantile(0.5),
            times_slower=self._slow.get(name),
            starved=name in self.front_ends.known and self.front_ends.known[name].starved,
        )

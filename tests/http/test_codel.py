"""Who is refused at the door, in virtual time: nobody in a burst, in a stall or at full load; in
overload those who have waited too long, so that the others are served soon."""

import random
from collections import deque
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.http.codel import INTERVAL_S, CoDel

TARGET_S = 0.05
SERVED_S = 0.001
REFUSED_S = 0.000_05
BACKLOG = 1024


class Door:
    """A queue of known arrivals in front of one who serves. waits_s: of the served; refused: when
    they came and when they went. stalls: nothing happens for so long at these times. turn_s: what
    else each turn takes."""

    def __init__(
        self, came_s: Iterable[float], stalls: dict[float, float] | None = None, turn_s: float = 0.0
    ) -> None:
        self.coming = deque(sorted(came_s))
        self.queue: deque[float] = deque()
        self.codel = CoDel()
        self.dropped = 0
        self.waits_s: list[tuple[float, float]] = []
        self.refused: list[tuple[float, float]] = []
        self.now_s = 0.0
        self._turn_s = turn_s
        self._looked_s = 0.0
        self._stalls = deque(sorted((stalls or {}).items()))
        self._left = 0

    def run(self) -> None:
        """Until all that come are gone."""
        while self.coming or self.queue:
            if not self.queue:
                self.now_s = max(self.now_s, self.coming[0])
            if self._stalls and self.now_s >= self._stalls[0][0]:
                self.now_s += self._stalls.popleft()[1]
            self.now_s += self._turn_s
            self._arrive()
            self._serve()
            self._left += 1
            self._look()

    def _serve(self) -> None:
        came_s = self.queue.popleft()
        self.waits_s.append((came_s, self.now_s - came_s))
        self.now_s += SERVED_S

    def _arrive(self) -> None:
        while self.coming and self.coming[0] <= self.now_s:
            came_s = self.coming.popleft()
            if len(self.queue) < BACKLOG:
                self.queue.append(came_s)
            else:
                self.dropped += 1

    def _look(self) -> None:
        looked_s, self._looked_s = self._looked_s, self.now_s
        due = self.codel.look(self.now_s, len(self.queue), self._left, TARGET_S)
        assert 0 <= due <= len(self.queue)
        taken = min(self.codel.takes(self.now_s - looked_s), len(self.queue) - due)
        self._left = due + taken
        self.refused += [(self.queue.popleft(), self.now_s) for _ in range(due)]
        self.now_s += due * REFUSED_S
        for _ in range(taken):
            self._serve()


def poisson(per_s: float, until_s: float, seed: int = 1) -> list[float]:
    chooser = random.Random(seed)
    came_s, at_s = [], 0.0
    while (at_s := at_s + chooser.expovariate(per_s)) < until_s:
        came_s.append(at_s)
    return came_s


@pytest.mark.parametrize(
    ("came_s", "stalls"),
    [
        pytest.param(poisson(900, 20.0), {}, id="busy"),
        pytest.param(poisson(900, 20.0), {5.0: 0.05, 12.0: 0.05}, id="a stall now and then"),
        pytest.param(poisson(600, 10.0), {5.0: 1.0}, id="a long stall is worked off"),
        pytest.param([0.0] * 1000, {}, id="all clients of a closed loop come at once"),
        pytest.param([0.0] * 1000 + poisson(500, 5.0), {}, id="and others come meanwhile"),
    ],
)
def test_nobody_is_refused_where_all_can_be_served(
    came_s: list[float], stalls: dict[float, float]
) -> None:
    door = Door(came_s, stalls)
    door.run()
    assert (door.refused, door.dropped) == ([], 0)


@pytest.mark.row("O1")
@pytest.mark.parametrize("factor", [1.5, 3.0, 6.0])
def test_in_overload_the_served_wait_briefly_and_goodput_holds(factor: float) -> None:
    door = Door(poisson(factor / SERVED_S, 5.0))
    door.run()
    began_s = door.refused[0][1]
    assert began_s < TARGET_S + 3 * INTERVAL_S
    later = [wait_s for came_s, wait_s in door.waits_s if came_s > began_s]
    assert max(later) < TARGET_S * 1.5
    # What is refused costs time, too.
    lost = (factor - 1.0) * REFUSED_S / SERVED_S
    assert len(door.waits_s) >= (1.0 - lost) * 0.9 * 5.0 / SERVED_S


def test_it_is_over_when_nobody_waits_too_long_for_an_interval() -> None:
    door = Door([*poisson(3000, 1.0), *(1.0 + at_s for at_s in poisson(500, 2.0, 2))])
    door.run()
    assert door.refused
    assert not [came_s for came_s, _ in door.refused if came_s > 1.2]
    assert not door.codel.overloaded


def test_a_loop_of_long_turns_serves_again_those_it_can() -> None:
    """As of a gateway that gets a tenth of its core: a burst that it must shed, then what it can
    do."""
    turn_s = 0.08
    door = Door([*poisson(600, 2.0), *(2.0 + at_s for at_s in poisson(120, 5.0, 2))], turn_s=turn_s)
    door.run()
    assert door.refused
    assert not [came_s for came_s, _ in door.refused if came_s > 2.5]


@given(
    gaps_ms=st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0, 3.0, 200.0]), min_size=1, max_size=800),
    repeat=st.integers(1, 5),
    stall_s=st.sampled_from([0.0, 0.05, 0.5]),
)
def test_whoever_is_refused_has_waited_too_long(
    gaps_ms: list[float], repeat: int, stall_s: float
) -> None:
    came_s, at_s = [], 0.0
    for gap_ms in gaps_ms * repeat:
        at_s += gap_ms / 1e3
        came_s.append(at_s)
    door = Door(came_s, {at_s / 2: stall_s})
    door.run()
    assert all(went_s - came_s >= TARGET_S for came_s, went_s in door.refused)
    assert len(door.waits_s) + len(door.refused) + door.dropped == len(came_s)
    assert door.codel.look(door.now_s, 0, 0, TARGET_S) == 0


def test_the_waits_of_many_are_known_by_few_marks() -> None:
    codel = CoDel()
    for turn in range(100_000):
        codel.look(turn * 0.001, BACKLOG, 1, TARGET_S)
        assert len(codel._marks) <= BACKLOG

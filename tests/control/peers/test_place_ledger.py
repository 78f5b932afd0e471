"""Places of a tenant over several gateways that read one stream: never more than the limit,
whatever they want and whenever the store is there; and all of it where somebody wants it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.admission.places import Place
from tokenlane.control.peers.place_ledger import RECLAIM_S, SETTLE_S, TURN_S, Claims, PlaceLedger

KEY, LIMIT = "t/requests", 100
TICK_S = 0.05


class Worker:
    """Takes what it may, a moment after it was told."""

    def __init__(self) -> None:
        self.place = Place(0, 0, 0)
        self.told = 0

    def work(self, wanted: int) -> Place:
        portion = self.told
        used = max(min(wanted, portion), min(self.place.used, wanted))
        self.place = Place(portion, used, min(wanted, LIMIT))
        return self.place


class Busy(Worker):
    """Has more requests than it ever may, and each is over at once."""

    def work(self, wanted: int) -> Place:
        self.place = Place(self.told, self.told, LIMIT)
        return self.place


class Gateway:
    """A ledger and its workers, at a place in the stream. stream: (gateway, claims)."""

    def __init__(self, name: str, stream: list[tuple[str, Claims]], workers: int = 1) -> None:
        self.name = name
        self.ledger = PlaceLedger(name)
        self.ledger.limit({KEY: LIMIT})
        self.stream = stream
        self.read_to: int | None = None
        self.workers = [Worker() for _ in range(workers)]
        for number in range(workers):
            self.ledger.worker_came(number)

    @property
    def used(self) -> int:
        return sum(worker.place.used for worker in self.workers)

    def tick(self, wanted: int, now_s: float, *, store: bool = True) -> None:
        for number, worker in enumerate(self.workers):
            # All of the demand comes to one worker.
            self.ledger.reported(number, {KEY: worker.work(wanted if number == 0 else 0)})
        said, portions = self.ledger.due(now_s)
        for number, told in portions.items():
            self.workers[number].told = told.get(KEY, self.workers[number].told)
        if not store:
            self.ledger.lost()
            self.read_to = None
            return
        self.stream.append((self.name, said))
        if self.read_to is None:
            self.ledger.connected(now_s)
            self.read_to = len(self.stream)
        for name, claims in self.stream[self.read_to :]:
            if name == self.name:
                self.ledger.echoed()
            else:
                self.ledger.heard(name, claims, now_s, whole=True)
        self.read_to = len(self.stream)
        self.ledger.clock(now_s)


def settled(count: int, workers: int = 1) -> tuple[list[Gateway], float]:
    stream: list[tuple[str, Claims]] = []
    gateways = [Gateway(f"gateway {number}", stream, workers) for number in range(count)]
    now_s = 0.0
    while now_s < SETTLE_S + 1:
        for gateway in gateways:
            gateway.tick(0, now_s)
        now_s += TICK_S
    return gateways, now_s


def run(gateways: list[Gateway], wanted: list[int], now_s: float, ticks: int) -> float:
    for _ in range(ticks):
        for gateway, one in zip(gateways, wanted, strict=True):
            gateway.tick(one, now_s)
            assert sum(each.used for each in gateways) <= LIMIT
        now_s += TICK_S
    return now_s


DEMANDS = st.lists(st.lists(st.integers(0, 150), min_size=3, max_size=3), min_size=1, max_size=6)


@pytest.mark.row("O15")
@given(DEMANDS, st.integers(1, 3))
def test_the_limit_is_kept_and_used(demands: list[list[int]], workers: int) -> None:
    gateways, now_s = settled(3, workers)
    for wanted in demands:
        now_s = run(gateways, wanted, now_s, 12)
        assert sum(each.used for each in gateways) >= min(sum(wanted), 0.95 * LIMIT)


@pytest.mark.row("O15")
@pytest.mark.parametrize("seed", range(40))
def test_a_store_that_comes_and_goes_opens_no_door(seed: int) -> None:
    draw = random.Random(seed)
    gateways, now_s = settled(3)
    away = {gateway.name: False for gateway in gateways}
    wanted = [0, 0, 0]
    for _ in range(500):
        draw.shuffle(gateways)
        for number, gateway in enumerate(gateways):
            if draw.random() < 0.1:
                wanted[number] = draw.randrange(150)
            if draw.random() < 0.005:
                # For all: the store is down, or restarted empty.
                away = dict.fromkeys(away, draw.random() < 0.5)
                if draw.random() < 0.5:
                    for other in gateways:
                        other.read_to = None
                        other.ledger.lost()
            gateway.tick(wanted[number], now_s, store=not away[gateway.name])
            assert sum(each.used for each in gateways) <= LIMIT
        now_s += TICK_S


def test_without_a_store_slices_stay_in_hand() -> None:
    gateways, now_s = settled(2)
    now_s = run(gateways, [80, 0], now_s, 20)
    for _ in range(int(RECLAIM_S * 2 / TICK_S)):
        gateways[0].tick(150, now_s, store=False)
        gateways[1].tick(150, now_s, store=False)
        now_s += TICK_S
    assert gateways[0].used >= 80
    assert gateways[1].used >= 1
    assert gateways[0].used + gateways[1].used <= LIMIT


def test_a_gateway_that_starts_without_a_store_neither_stops_nor_opens() -> None:
    gateway = Gateway("alone", [])
    for tick in range(100):
        gateway.tick(50, tick * TICK_S, store=False)
    assert gateway.used == 1


def test_what_a_dead_gateway_held_is_free_after_a_while() -> None:
    gateways, now_s = settled(2)
    now_s = run(gateways, [0, 100], now_s, 20)
    alive, dead = gateways
    assert dead.used == LIMIT
    began_s = now_s
    while alive.used < LIMIT:
        alive.tick(LIMIT, now_s)
        now_s += TICK_S
        assert now_s - began_s < RECLAIM_S + 1
    assert now_s - began_s > RECLAIM_S - 1


def test_who_leaves_gives_back_at_once() -> None:
    gateways, now_s = settled(2)
    now_s = run(gateways, [0, 100], now_s, 20)
    gateways[0].tick(0, now_s)
    gateways[0].ledger.left("gateway 1")
    run(gateways[:1], [LIMIT], now_s, 3)
    assert gateways[0].used == LIMIT


def test_a_limit_that_is_less_is_kept_soon() -> None:
    gateways, now_s = settled(3)
    now_s = run(gateways, [50, 50, 50], now_s, 20)
    for gateway in gateways:
        gateway.ledger.limit({KEY: 30})
    # Requests under way end one after the other.
    for wanted in range(50, -1, -1):
        now_s = run(gateways, [wanted] * 3, now_s, 2)
    run(gateways, [50] * 3, now_s, 10)
    assert 28 <= sum(each.used for each in gateways) <= 30


def test_a_worker_that_is_gone_uses_nothing() -> None:
    gateways, now_s = settled(1, workers=2)
    gateway = gateways[0]
    now_s = run(gateways, [70], now_s, 10)
    gateway.ledger.worker_gone(0)
    gateway.workers.pop(0)
    gateway.workers[0], told = Worker(), gateway.workers[0].told
    assert told < LIMIT
    gateway.ledger.worker_gone(1)
    gateway.ledger.worker_came(0)
    run(gateways, [LIMIT], now_s, 5)
    assert gateway.used == LIMIT


def busy(count: int, workers: int, limit: int) -> tuple[list[Gateway], float]:
    gateways, now_s = settled(count)
    for gateway in gateways:
        gateway.ledger.limit({KEY: limit})
        gateway.workers = [Busy() for _ in range(workers)]
        for number in range(workers):
            gateway.ledger.worker_gone(number)
            gateway.ledger.worker_came(number)
    return gateways, run(gateways, [0] * count, now_s, 20)


@pytest.mark.row("O15")
@pytest.mark.parametrize(
    ("count", "workers", "limit"),
    [(1, 2, 1), (1, 4, 2), (2, 1, 1), (3, 1, 2), (2, 2, 1), (3, 2, 1), (2, 3, 1), (3, 2, 4)],
)
def test_where_there_are_fewer_places_than_workers_each_has_one_now_and_then(
    count: int, workers: int, limit: int
) -> None:
    gateways, now_s = busy(count, workers, limit)
    everybody = [worker for gateway in gateways for worker in gateway.workers]
    last_s = dict.fromkeys(everybody, now_s)
    used, ticks = 0, int(2 * count * workers * TURN_S / TICK_S)
    for _ in range(ticks):
        now_s = run(gateways, [0] * count, now_s, 1)
        using = [worker for worker in everybody if worker.place.used]
        assert sum(worker.place.used for worker in using) <= limit
        used += sum(worker.place.used for worker in using)
        last_s |= dict.fromkeys(using, now_s)
        assert now_s - min(last_s.values()) < (count * workers + 1) * TURN_S
    assert used > 0.8 * limit * ticks


def test_without_a_store_a_place_stays_with_its_gateway_and_goes_round_its_workers() -> None:
    gateways, now_s = busy(2, 2, 1)
    now_s = run(gateways, [0, 0], now_s, int((2.5 * TURN_S - now_s % TURN_S) / TICK_S))
    [holder] = [gateway for gateway in gateways if gateway.used]
    served = dict.fromkeys(holder.workers, 0)
    for _ in range(int(20 * TURN_S / TICK_S)):
        for gateway in gateways:
            gateway.tick(0, now_s, store=False)
        now_s += TICK_S
        for worker in served:
            served[worker] += worker.place.used
    assert min(served.values()) > 0.4 * 20 * TURN_S / TICK_S

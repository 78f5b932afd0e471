"""A worker's places: its portions hold whenever they come."""

import time

from tokenlane.admission.policy import Admission, State, Ticket
from tokenlane.admission.queue import AdmissionQueue
from tokenlane.config.settings import AdmissionSettings, Tenant
from tokenlane.worker.place_reports import PlaceReports

TENANTS = {"t": Tenant(concurrency_limit_count=10)}


class Scene:
    """A worker that has a queue once a reload made one. told: what the supervisor was told."""

    def __init__(self) -> None:
        self.queue: AdmissionQueue | None = None
        self.told: list[dict[str, tuple[int, int, int]]] = []
        self.reports = PlaceReports(lambda: self.queue, self.told.append)

    def reload(self) -> None:
        admission = Admission(AdmissionSettings(), TENANTS, shares=True)
        self.queue = AdmissionQueue(admission, 5.0, lambda *_: None, lambda *_: None)

    def ask(self) -> Ticket:
        assert self.queue is not None
        return self.queue.admission.ask("t", 1, time.monotonic())[0]

    def look(self) -> None:
        self.reports.start()
        self.reports.stop()


async def test_portions_that_come_before_the_queue_hold_once_it_is_there() -> None:
    scene = Scene()
    scene.reports.portions({"t/requests": 5, "gone/tokens": 7})
    scene.look()
    scene.reports.portions({"t/requests": 1})
    assert scene.told == []
    scene.reload()
    waits = scene.ask()
    scene.look()
    assert waits.state is State.ADMITTED
    assert scene.ask().state is State.WAITING
    assert scene.told == [{"t/requests": (1, 1, 1)}]
    scene.look()
    assert scene.told[1:] == [{"t/requests": (1, 1, 2)}]


async def test_portions_that_come_later_hold_at_once() -> None:
    scene = Scene()
    scene.reload()
    waits = scene.ask()
    scene.reports.portions({"t/requests": 1})
    assert waits.state is State.ADMITTED
    assert scene.ask().state is State.WAITING

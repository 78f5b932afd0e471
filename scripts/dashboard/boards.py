"""All boards, by the names of their files."""

from scripts.dashboard.admission import ADMISSION
from scripts.dashboard.caches import CACHES
from scripts.dashboard.loop import LOOP
from scripts.dashboard.overview import OVERVIEW

BOARDS = {
    "tokenlane.json": OVERVIEW,
    "tokenlane-loop.json": LOOP,
    "tokenlane-caches.json": CACHES,
    "tokenlane-admission.json": ADMISSION,
}

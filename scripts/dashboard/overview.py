"""The first board: is it well, and if not, who is it?"""

from scripts.dashboard.glance import CONVICTS, GLANCE, HEALTH
from scripts.dashboard.panel import Board
from scripts.dashboard.replicas import FLEET, REPLICAS
from scripts.dashboard.traffic import ROUTING, TRAFFIC

OVERVIEW = Board(
    "tokenlane",
    "tokenlane",
    (GLANCE, HEALTH, CONVICTS, TRAFFIC, REPLICAS, ROUTING, FLEET),
)

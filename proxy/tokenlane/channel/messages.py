"""What the supervisor and its workers tell each other: `Down` and `Up` are all there is."""

import msgspec

from tokenlane.config.settings import Key, Settings
from tokenlane.fleet_state import CacheChange, FleetState, ProofNews
from tokenlane.telemetry.routing_sample import RoutingSample
from tokenlane.telemetry.stalls.stall import Stall


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages."""


class Hello(Message, frozen=True):
    """Who the worker is and what it works with. port: the one to bind, never 0. keys: of clients;
    None where all may come in."""

    worker: int
    settings: Settings
    metrics_fd: int
    board_fd: int
    fleet: FleetState
    host: str
    port: int
    keys: tuple[Key, ...] | None


class Reload(Message, frozen=True):
    """Other settings and clients' keys (None: all may come in), whole. The worker says Reloaded."""

    number: int
    settings: Settings
    keys: tuple[Key, ...] | None


class Reloaded(Message, frozen=True):
    """A Reload is in force, or cannot be and nothing has changed; then `reason` says why."""

    number: int
    reason: str = ""


class FleetUpdate(Message, frozen=True):
    """The replicas, whole. A later one replaces an earlier one."""

    state: FleetState


class Learned(Message, frozen=True):
    """Prefixes that were routed to replicas, in that order: (slot, blocks, tenant). blocks: packed
    uint64, from the first block on. tenant: whose it is; empty where there are none."""

    prefixes: list[tuple[int, bytes, str]]


class Kept(Message, frozen=True):
    """A response that a replica made for a tenant, and may keep."""

    name: str
    slot: int
    tenant: str


class WhoseResponse(Message, frozen=True):
    """Say which replica keeps a response, and whose it is. number: comes back with the answer."""

    number: int
    name: str


class ResponseOf(Message, frozen=True):
    """The answer to a WhoseResponse; slot: -1 where no worker saw it made."""

    number: int
    slot: int
    tenant: str


class Cached(Message, frozen=True):
    """What a replica's KV events say. In order: none is left out without a later one that starts
    over (`CacheChange.cleared`)."""

    change: CacheChange


class Suspect(Message, frozen=True):
    """A worker could not reach a replica: probe it now rather than at the next turn."""

    slot: int


class ProofFound(Message, frozen=True):
    """What a worker found out about the ids that a replica makes."""

    news: ProofNews


class RoutedSamples(Message, frozen=True):
    """Some of the requests that were routed lately, for people to look at."""

    samples: list[RoutingSample]


class Places(Message, frozen=True):
    """What changed in a worker of the places that tenants share: portion, used, wanted, by key."""

    places: dict[str, tuple[int, int, int]]


class Portions(Message, frozen=True):
    """What a worker may use of the places that tenants share, by key: those that changed."""

    portions: dict[str, int]


class Drain(Message, frozen=True):
    """Finish what is in flight and exit."""


class Explain(Message, frozen=True):
    """Say where this request would go. number: comes back with the answer. headers: lower-case
    names. path: empty where the body tells. tenant: whose it is, where there are tenants."""

    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    path: str = ""
    tenant: str = ""
    number: int = 0


class Explained(Message, frozen=True):
    """The answer to an Explain: an HTTP status and a JSON body."""

    number: int
    status: int
    body: bytes


class WorkerReady(Message, frozen=True):
    """The worker listens. doubts: by model, why its ids may differ from vLLM's."""

    doubts: dict[str, tuple[str, ...]] = {}


class Stalled(Message, frozen=True):
    """The worker's loop was held."""

    stall: Stall


class Beats(Message, frozen=True):
    """How late the last second's heartbeats were: packed float32 seconds."""

    lateness: bytes


class Failed(Message, frozen=True):
    """The worker cannot start; `reason` is one sentence for the operator."""

    reason: str


Down = Hello | FleetUpdate | Reload | Learned | ResponseOf | Cached | Explain | Drain | Portions
Up = (
    WorkerReady
    | Failed
    | Reloaded
    | Learned
    | Kept
    | WhoseResponse
    | Suspect
    | ProofFound
    | RoutedSamples
    | Stalled
    | Beats
    | Places
    | Explained
)

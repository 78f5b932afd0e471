"""What a server's connections and exchanges share with it.

Invariants:
- It imports neither, so both may import it.
"""

import asyncio
import itertools
import os
import re
from typing import Final

from tokenlane.config.settings import ServerSettings
from tokenlane.http.body_pieces import KnownPart
from tokenlane.http.cors import Cors
from tokenlane.http.request_body import BodyMemory
from tokenlane.http.turns import TurnQueue

_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")


class ServerState:
    """The shared state of one server.

    settings: of new requests; a reload replaces them. draining: no request may follow the one that
    a connection has: the server stops, or has as many connections as it can have. add_request_id:
    whether answers carry `x-request-id`. cors: None where pages of other origins may not ask.
    turns: of bodies, for those that are more than one turn's work. known_part: of the bodies that
    others may begin with.
    """

    def __init__(
        self,
        settings: ServerSettings,
        known_part: KnownPart | None = None,
        *,
        add_request_id: bool,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.draining = False
        self.add_request_id = add_request_id
        self.cors = Cors(settings.cors_origins) if settings.cors_origins else None
        # Workers share the limit evenly, as those of admission.
        self.body_memory = BodyMemory(-(-settings.bodies_limit_bytes // settings.workers))
        self.turns = TurnQueue()
        self.known_part = known_part
        self._made_ids = itertools.count()
        self._id_prefix = os.urandom(10).hex().encode()

    @property
    def idle_s(self) -> float:
        """How long a connection may be without a request."""
        settings = self.settings
        return settings.drain_linger_s if self.draining else settings.idle_deadline_s

    def request_id(self, offered: bytes | None) -> bytes:
        """Return the client's id if it is short and printable, else a new one."""
        if offered is not None and _REQUEST_ID.fullmatch(offered):
            return offered
        return b"%b%012x" % (self._id_prefix, next(self._made_ids))

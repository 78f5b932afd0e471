"""The server, as its connections see it."""

from typing import Protocol, TypeVar

from tokenlane.http.exchange import Exchange, Handler
from tokenlane.http.heads import RequestHeads
from tokenlane.http.server_state import ServerState

_Connection_contra = TypeVar("_Connection_contra", contravariant=True)


class ConnectionOwner(Protocol[_Connection_contra]):
    """The server's methods for its connections. A connection keeps `state` and `run` (the handler),
    which every request needs: a Protocol is slow in the compiled build."""

    state: ServerState
    run: Handler

    def heads_for(self, peer: object) -> RequestHeads:
        """Return the parser of a peer's request heads. peer: its address, as sockets have it."""
        ...

    def opened(self, connection: _Connection_contra) -> None:
        """Keep a connection."""

    def closed(self, connection: _Connection_contra) -> None:
        """Drop a connection."""

    def refused(self, exchange: Exchange) -> None:
        """Note a request that was answered before it reached the handler."""

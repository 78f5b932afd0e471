"""Other gateways in front of the same replicas: a gateway that starts asks them what caches hold.

A publisher keeps its last messages for a replay, which mostly do not reach back to its start. A
peer that was there has the whole account: `GET /replicas/{id}/kv-account?rank=N`, admin port.

Invariants:
- What a peer says is a head start and never waited for longer than DEADLINE_S. Whatever is
  wrong with it, the publisher is asked for all that it has, as without peers.
- Only an account that is complete is given away, and taken by who hashes prompts alike.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp import web

from tokenlane.config.secret import Secret
from tokenlane.control.admin_answers import refusal
from tokenlane.control.kv_events.account import AccountSnapshot, PublisherAccount
from tokenlane.control.probes import ProbeFailed, body_of
from tokenlane.errors import UNREADABLE

DEADLINE_S = 2.0
CONNECT_DEADLINE_S = 0.5
# A million blocks are some 20 MB; they are hashes, which no compression makes smaller.
SNAPSHOT_LIMIT_BYTES = 64 * 1024 * 1024

log = logging.getLogger("kv")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AccountSnapshot).decode


@dataclass(eq=False)
class PeerAccounts:
    """addresses: URLs of admin ports, one's own may be among them. token: shown to them, where
    reading needs one. deadline_s: for all that is asked of a replica's rank; limit_bytes: of an
    answer."""

    addresses: Callable[[], Iterable[str]] = tuple
    token: Callable[[], Secret | None] = lambda: None
    _: KW_ONLY
    deadline_s: float = DEADLINE_S
    limit_bytes: int = SNAPSHOT_LIMIT_BYTES

    async def fill(self, account: PublisherAccount, replica_id: str) -> None:
        """Fill an account that has heard nothing yet with what the first peer knows that knows
        all of it."""
        addresses = tuple(self.addresses())
        if not addresses:
            return
        token = self.token()
        headers = {"Authorization": "Bearer " + token.reveal().decode("ascii")} if token else {}
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_DEADLINE_S)
        path = f"/replicas/{quote(replica_id, safe='')}/kv-account?rank={account.rank}"
        try:
            async with (
                asyncio.timeout(self.deadline_s),
                aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
            ):
                for address in addresses:
                    url = address.rstrip("/") + path
                    snapshot = await _asked(session, url, self.limit_bytes)
                    if snapshot is not None and account.resume(snapshot):
                        log.info("what replica %s holds was learned from %s", replica_id, address)
                        return
        except TimeoutError:
            log.info("no peer said in time what replica %s holds", replica_id)


async def _asked(
    session: aiohttp.ClientSession, url: str, limit_bytes: int
) -> AccountSnapshot | None:
    """What one peer says; None where it knows nothing that is of use."""
    try:
        return _decode(await body_of(session, url, limit_bytes))
    except (ProbeFailed, *UNREADABLE):
        return None


def account_route(find: Callable[[str, int], PublisherAccount | None]) -> web.RouteDef:
    """The route on the admin port. find: an account by its replica's id and its rank."""

    async def told(request: web.Request) -> web.Response:
        rank = request.query.get("rank", "0")
        number = int(rank) if rank.isascii() and rank.isdigit() and len(rank) < 6 else -1
        account = find(request.match_info["id"], number)
        snapshot = account.snapshot() if account is not None else None
        if snapshot is None:
            return refusal(404, "This gateway does not know all of that cache.", "unknown_account")
        return web.Response(body=_encode(snapshot), content_type="application/msgpack")

    return web.get("/replicas/{id}/kv-account", told)

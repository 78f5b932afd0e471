"""Changes over the admin port: replicas added, drained and removed, settings reloaded.

Invariants:
- Nothing is changed, and no body read, for whom tokenlane.control.admin_access refuses it.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from tokenlane.control.admin_access import AdminAccess
from tokenlane.control.admin_answers import answer, refusal
from tokenlane.control.reconcile import Member
from tokenlane.control.reload import ReloadReport
from tokenlane.control.roster import Roster
from tokenlane.errors import UNREADABLE, ConfigError

log = logging.getLogger("admin")

_Handler = Callable[[web.Request], Awaitable[web.Response]]


class _Added(msgspec.Struct, forbid_unknown_fields=True):
    url: str


@dataclass(eq=False)
class Changes:
    """The verbs. access: says to whom. in_flight: requests, by slot. reload: reads the settings
    anew."""

    roster: Roster
    access: AdminAccess
    in_flight: Callable[[int], int]
    reload: Callable[[], Awaitable[ReloadReport]]

    def routes(self) -> list[web.RouteDef]:
        """For the admin port."""
        return [
            web.post("/replicas", self._guarded(self._add)),
            web.post("/replicas/{id}/drain", self._guarded(self._drain)),
            web.delete("/replicas/{id}", self._guarded(self._remove)),
            web.post("/reload", self._guarded(self._reloaded)),
        ]

    def _guarded(self, handler: _Handler) -> _Handler:
        async def guarded(request: web.Request) -> web.Response:
            refused = self.access.change_refused(request)
            if refused is not None:
                log.warning("%s %s was refused", request.method, request.rel_url.path)
                return refused
            return await handler(request)

        return guarded

    def _row(self, member: Member) -> dict[str, Any]:
        return {
            "id": member.id,
            "url": member.url,
            "origin": member.origin,
            "draining": member.draining,
            "in_flight_requests": self.in_flight(member.slot),
        }

    async def _add(self, request: web.Request) -> web.Response:
        try:
            wanted = msgspec.json.decode(await request.read(), type=_Added)
            member, is_new = self.roster.add(wanted.url)
        except UNREADABLE:
            message = 'The body must be {"url": "http://HOST:PORT"}.'
            return refusal(400, message, "invalid_body")
        except ConfigError as error:
            return refusal(400, _sentence(str(error)), "invalid_replica")
        return answer(self._row(member), 201 if is_new else 200)

    async def _drain(self, request: web.Request) -> web.Response:
        member = self.roster.drain(request.match_info["id"])
        return self._unknown() if member is None else answer(self._row(member))

    async def _remove(self, request: web.Request) -> web.Response:
        member = self.roster.remove(request.match_info["id"])
        return self._unknown() if member is None else answer({**self._row(member), "removed": True})

    async def _reloaded(self, _: web.Request) -> web.Response:
        report = await self.reload()
        if report.problems:
            message = f"The settings stay as they were: {'; '.join(report.problems)}"
            return refusal(422, _sentence(message), "config_refused")
        return answer(report)

    def _unknown(self) -> web.Response:
        known = ", ".join(member.id for member in self.roster.members) or "none"
        return refusal(404, f"There is no such replica. Known: {known}.", "unknown_replica")


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."

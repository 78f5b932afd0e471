"""Who may use the admin port: under which name of it, and with which token.

Invariants:
- A page of the web that made its own name mean this machine (DNS rebinding) is refused: the port
  may be asked by its address, and by those names alone that the operator gave it.
- Without an admin token configured nothing can be changed, whoever asks: 403. With one, every
  change shows it (`Authorization: Bearer TOKEN`): 401 otherwise, before its body is read. Whether
  reading needs it too is a setting; probes never do.
- Tokens are compared by their digests, in constant time; neither is ever logged or repeated.
"""

import hmac
from collections.abc import Callable
from hashlib import sha256
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web

from tokenlane.config.secret import ADMIN_TOKEN_VARIABLE, Secret
from tokenlane.config.settings import AdminSettings
from tokenlane.control.admin_answers import refusal

# Of whoever decides whether this process lives on and gets requests.
PROBES = frozenset(("/livez", "/readyz"))
_OFF = (
    "Changes are off: no admin token is configured. Set admin.token_file, or start the gateway"
    f" with the variable {ADMIN_TOKEN_VARIABLE}."
)


class AdminAccess:
    """The rules. settings, token: called for each request, because a reload may change both."""

    def __init__(
        self, settings: Callable[[], AdminSettings], token: Callable[[], Secret | None]
    ) -> None:
        self._settings = settings
        self._token = token

    def refused(self, request: web.BaseRequest) -> web.Response | None:
        """Why a request is turned away, whatever it asks for; None if it may come in."""
        settings, token = self._settings(), self._token()
        if not is_named(settings, request.headers.get("Host")):
            message = "This is no name of the admin port; the setting admin.hosts lists them."
            return refusal(421, message, "unknown_host")
        if settings.read_needs_token and request.path not in PROBES:
            return self.change_refused(request) if token is not None else None
        return None

    def reading_token(self) -> Secret | None:
        """What reading needs at a gateway with the same settings, if anything."""
        return self._token() if self._settings().read_needs_token else None

    def change_refused(self, request: web.BaseRequest) -> web.Response | None:
        """Why a change is not made; None if it may be."""
        token = self._token()
        if token is None:
            return refusal(403, _OFF, "changes_off")
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        digest = sha256(shown.strip().encode("utf-8", "surrogateescape")).digest()
        good = hmac.compare_digest(digest, sha256(token.reveal()).digest())
        if scheme.lower() != "bearer" or not good:
            message = (
                "The admin token is missing or wrong. Send it as `Authorization: Bearer TOKEN`."
            )
            return refusal(401, message, "invalid_admin_token", {"WWW-Authenticate": "Bearer"})
        return None


def is_named(settings: AdminSettings, host: str | None) -> bool:
    """Whether a Host header names the admin port, with or without a port number."""
    if host is None:
        return True  # browsers always name one; probes that speak HTTP/1.0 do not
    try:
        parts = urlsplit(f"//{host}")
        name = (parts.hostname or "").rstrip(".")
        if parts.netloc != host or "@" in host:
            return False
        if name in {one.lower() for one in ("localhost", settings.host, *settings.hosts) if one}:
            return True
        ip_address(name)
    except ValueError:
        return False
    return True

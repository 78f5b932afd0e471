"""Map a client's API key to its tenant. Pure; the time is an argument.

Invariants:
- Keys are known by their SHA-256 alone. The key a client sends is hashed before it is looked up,
  so how long the look takes says nothing about any key (and no `==` ever touches one).
- The error never says what was wrong with a client's key, and never repeats it.
- The same Route that dispatch serves decides whether a key is needed; what is not served needs one.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256

from tokenlane.config.settings import Key
from tokenlane.errors import RequestError
from tokenlane.protocols.routes import Route

# Fields in which a client's key comes; they end at the gateway where it has keys of its own.
KEY_FIELDS = frozenset({b"authorization", b"x-api-key"})
_SCHEME = b"bearer "


class Authenticator:
    """The keys in force. on_refused: told why for each request that had none of
    them: missing, malformed, unknown or expired.

    Raises ValueError where two keys have the same digest.
    """

    def __init__(self, keys: Iterable[Key], on_refused: Callable[[str], object]) -> None:
        self._on_refused = on_refused
        self._tenants: dict[bytes, str] = {}
        self._ends_s: dict[bytes, float] = {}
        for key in keys:
            digest = bytes.fromhex(key.digest)
            if digest in self._tenants:
                raise ValueError("a key is given twice")
            self._tenants[digest] = key.tenant
            if key.expires is not None:
                self._ends_s[digest] = key.expires.timestamp()

    def tenant(self, route: Route, headers: Sequence[tuple[bytes, bytes]], now_s: float) -> str:
        """Return the tenant of a request; empty on routes that need no key. headers: lower-case
        names. now_s: unix time. Raise RequestError 401."""
        if route.public:
            return ""
        sent = [field for field in headers if field[0] in KEY_FIELDS]
        if not sent:
            raise self._refused("missing")
        # The gateway might read one of two keys, and a proxy that logs or bills the other.
        name, value = sent[0]
        if len(sent) > 1 or (name == b"authorization" and value[:7].lower() != _SCHEME):
            raise self._refused("malformed")
        key = value[7:].strip(b" ") if name == b"authorization" else value
        digest = sha256(key).digest()
        tenant = self._tenants.get(digest)
        if tenant is None:
            raise self._refused("unknown")
        if digest in self._ends_s and now_s >= self._ends_s[digest]:
            raise self._refused("expired")
        return tenant

    def _refused(self, reason: str) -> RequestError:
        self._on_refused(reason)
        words = "No API key was sent." if reason == "missing" else "The API key is not valid."
        return RequestError(
            401,
            f"{words} Send one as `Authorization: Bearer KEY`.",
            code="invalid_api_key",
            headers=((b"www-authenticate", b"Bearer"),),
        )


def dropped_fields(keys: object | None, replica_key: object | None) -> frozenset[bytes]:
    """Return fields that replicas do not get: clients' keys, where they are the gateway's or give
    way to its own."""
    return KEY_FIELDS if keys is not None or replica_key is not None else frozenset()


@lru_cache(maxsize=4096)
def tenant_salt(tenant: str, given: str | None) -> str:
    """Return the cache_salt of a tenant's request, whose own was `given`: nothing that one tenant
    sends gives the salt of another."""
    text = f"{tenant}\0{given or ''}".encode("utf-8", "surrogatepass")
    return sha256(b"tokenlane cache_salt\0" + text).hexdigest()[:32]

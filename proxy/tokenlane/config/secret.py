"""A secret that is carried about and shown to nobody.

Invariants:
- No way of making text of it shows what it holds: `repr` is `***`, all others raise. It is taken
  out by name (`reveal`), at the edge where it goes on a wire.
"""

import hmac
from typing import NoReturn

# Read where no setting names a file with the secret.
REPLICA_KEY_VARIABLE = "TOKENLANE_UPSTREAM_API_KEY"
ADMIN_TOKEN_VARIABLE = "TOKENLANE_ADMIN_TOKEN"
STORE_PASSWORD_VARIABLE = "TOKENLANE_FLEET_PASSWORD"
SECRET_VARIABLES = (REPLICA_KEY_VARIABLE, ADMIN_TOKEN_VARIABLE, STORE_PASSWORD_VARIABLE)


class Secret:
    """Bytes not to be seen. Equal to itself alone, so that nothing compares it byte by byte."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """Return the secret."""
        return self._value

    def same(self, other: "Secret | None") -> bool:
        """Return whether both are equal, in constant time."""
        return other is not None and hmac.compare_digest(self._value, other.reveal())

    def __repr__(self) -> str:
        return "***"

    def __str__(self) -> NoReturn:
        raise TypeError("a secret has no text")

    def __format__(self, spec: str) -> NoReturn:
        raise TypeError("a secret has no text")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled")

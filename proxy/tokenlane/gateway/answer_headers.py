"""The gateway's own headers of a replica's answer: which replica, why, and what it had cached.

Invariants:
- `cached-tokens` is said only where the ids are known; elsewhere it would be a guess.
"""

from tokenlane.routing.decision import Decision


class AnswerHeaders:
    """Header lines, made once for each replica and reason."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, str, str], bytes] = {}

    def of(self, replica: bytes, decision: Decision) -> bytes:
        """Each line with its CRLF. replica: its id as a header value."""
        key = (replica, decision.policy, decision.reason)
        lines = self._known.get(key)
        if lines is None:
            lines = self._known[key] = (
                b"x-tokenlane-replica: %b\r\nx-tokenlane-route: %b %b\r\n"
                % (replica, decision.policy.encode(), decision.reason.encode())
            )
        if decision.exact:
            return b"%bx-tokenlane-cached-tokens: %d\r\n" % (lines, decision.choice.cached_tokens)
        return lines

"""A small text trace for tests."""

import json


def lines(count: int) -> bytes:
    """Return a trace of so many requests in three sessions, the last first."""
    rows = [
        {
            "timestamp": 1_000_000 + 20_000 * at,
            "session_id": f"s{at % 3}",
            "input": f"Session {at % 3}. " + "A step of the work, and its result. " * (5 + at),
            "output": "unused",
        }
        for at in range(count)
    ]
    return "\n".join(json.dumps(row) for row in reversed(rows)).encode()

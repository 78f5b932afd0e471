"""Which build runs: the hot modules as C extensions (setup.py), or all of it as plain Python."""

from importlib.util import find_spec

# A module that is compiled in every compiled build, and that every server imports.
_HOT = "tokenlane.routing.decision"


def build_kind() -> str:
    """Return "compiled" or "plain"."""
    spec = find_spec(_HOT)
    return "plain" if spec is None or (spec.origin or "").endswith(".py") else "compiled"

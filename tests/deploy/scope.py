"""Which metrics an expression asks for."""

import re


def metrics_in(expr: str) -> set[str]:
    """Names of our metrics and recorded series in a PromQL expression."""
    return set(re.findall(r"\b(?:[a-z_]+:)?(?:tokenlane|process)_[a-z0-9_]+(?::\w+)?", expr))

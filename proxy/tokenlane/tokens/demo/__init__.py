"""Where the demo model's tokenizer is.

Invariants:
- Naming its folder loads no tokenizer, nor the libraries of one.
"""

from pathlib import Path


def demo_folder() -> Path:
    """The folder of the demo model that ships with the package."""
    return Path(__file__).parent

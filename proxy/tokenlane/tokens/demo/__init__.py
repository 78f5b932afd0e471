"""Where the demo model's tokenizer is.

Invariants:
- Importing this loads no tokenizer and none of its libraries.
"""

from pathlib import Path


def demo_folder() -> Path:
    """Return the folder of the demo model that ships with the package."""
    return Path(__file__).parent

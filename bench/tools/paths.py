"""Where the project lies, and where a bench writes."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
ENGINE_RESULTS = RESULTS / "engine"

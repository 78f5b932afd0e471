"""`python -m scripts.dashboard`: writes deploy/grafana."""

from pathlib import Path

from scripts.dashboard.boards import BOARDS
from scripts.dashboard.grafana import text

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"


def main() -> None:
    """One file per board."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, board in BOARDS.items():
        (FOLDER / name).write_text(text(board), encoding="utf-8")
        print(f"written: {FOLDER / name}")


if __name__ == "__main__":
    main()

"""What searches have found so far of the whole gateway: inputs that reach as much code as all, kept
in the repository for the tests, and for the next search to begin with.

    python -m tests.fuzz.corpus NAME FOLDER     keeps FOLDER's (what `make fuzz` left, merged)
"""

import sys
import zipfile
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("corpus")
_LIMIT_BYTES = 300 * 1024
_EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def kept(name: str) -> list[bytes]:
    """Those of one property; none of those that have no archive."""
    file = FOLDER / f"{name}.zip"
    if not file.exists():
        return []
    with zipfile.ZipFile(file) as archive:
        return [archive.read(one) for one in sorted(archive.namelist())]


def keep(name: str, inputs: list[bytes]) -> None:
    """Writes the archive: the short ones first, up to its limit."""
    FOLDER.mkdir(exist_ok=True)
    left_bytes = _LIMIT_BYTES
    with zipfile.ZipFile(FOLDER / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number, data in enumerate(sorted(set(inputs), key=lambda one: (len(one), one))):
            left_bytes -= len(data)
            if left_bytes < 0:
                return
            archive.writestr(zipfile.ZipInfo(f"{number:04}", _EPOCH), data, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    keep(sys.argv[1], [file.read_bytes() for file in Path(sys.argv[2]).iterdir()])

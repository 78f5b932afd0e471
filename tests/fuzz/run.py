"""A property under atheris, which looks for inputs that reach new code.

    python -m tests.fuzz.run NAME FOLDER [libFuzzer's options]        (`make fuzz`)

FOLDER keeps what was found so far; the seeds are written there first. A crash leaves its input
beside it. Needs atheris, which the locked requirements do not have.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tokenlane", "yaml"]):
    from tests.fuzz.properties import PROPERTIES

from tests.fuzz import whole
from tests.fuzz.corpus import kept
from tests.fuzz.mutations import PREFIXES, mutated
from tests.fuzz.seeds import seeds


def main() -> None:
    """Searches until a crash, or for as long as the options say."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate([*seeds(name), *kept(name)]):
        (folder / f"seed-{number}").write_bytes(seed)
    options = [sys.argv[0], f"-artifact_prefix={folder}-", *sys.argv[3:], str(folder)]

    def mutate(data: bytes, limit_bytes: int, seed: int) -> bytes:
        # Half of the changes are atheris' own.
        changed = mutated(name, data, seed) if seed & 1 else atheris.Mutate(data, limit_bytes)
        return bytes(changed[:limit_bytes])

    PROPERTIES[name](b"")  # what it loads counts for no input
    known = {"custom_mutator": mutate} if name in PREFIXES else {}
    atheris.Setup(options, PROPERTIES[name], **known)
    try:
        atheris.Fuzz()
    finally:
        whole.close()


if __name__ == "__main__":
    main()

"""No deadline, age or order is taken from the wall clock: it may jump."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


# Where it is read, and how often: for people and for other machines, who have no other clock.
SHOWN = {
    "proxy/control/kvsocket.py": 1,  # how old an event is that another machine stamped
    "proxy/control/reload.py": 2,  # when settings were read
    "proxy/control/screen.py": 1,
    "proxy/control/watch.py": 1,
    "proxy/gateway.py": 1,  # when a key expires is said in it
    "proxy/local.py": 1,  # `created` in the list of models
    "proxy/samples.py": 1,
    "proxy/telemetry/access.py": 1,
    "proxy/telemetry/monitor.py": 1,  # when a stall was
    "proxy/telemetry/traces.py": 1,
    "proxy/tokens/template.py": 1,  # what a chat template may print
}


@pytest.mark.row("O10")
def test_the_wall_clock_is_only_shown() -> None:
    found: dict[str, int] = {}
    for path in sorted((ROOT / "proxy").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("proxy/simulator"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "time.time",
                "time.time_ns",
                "datetime.now",
                "datetime.utcnow",
                "time.localtime",
                "time.gmtime",
            ):
                found[name] = found.get(name, 0) + 1
    assert found == SHOWN

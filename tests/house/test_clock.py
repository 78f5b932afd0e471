"""No deadline, age or order is taken from the wall clock: it may jump."""

import ast

import pytest

from tests.paths import ROOT

# Where it is read, and how often: for people and for other machines, who have no other clock.
SHOWN = {
    "proxy/tokenlane/cli/doctor_fleet.py": 1,  # how far gateways' clocks are apart
    "proxy/tokenlane/control/kv_events/sockets.py": 1,  # the age of an event stamped elsewhere
    "proxy/tokenlane/control/peers/load_sharing.py": 2,  # how far gateways' clocks are apart
    "proxy/tokenlane/control/reload.py": 2,  # when settings were read
    "proxy/tokenlane/control/dashboard/screen.py": 1,
    "proxy/tokenlane/control/dashboard/history.py": 2,  # when something happened, and now
    "proxy/tokenlane/control/dashboard/verdict.py": 1,
    "proxy/tokenlane/gateway/request.py": 1,  # when a key expires is said in it
    "proxy/tokenlane/gateway/local_answers.py": 1,  # `created` in the list of models
    "proxy/tokenlane/gateway/route_samples.py": 1,
    "proxy/tokenlane/telemetry/log/setup.py": 1,
    "proxy/tokenlane/telemetry/metrics/processes.py": 1,  # when a process was started
    "proxy/tokenlane/telemetry/queued_writer.py": 1,
    "proxy/tokenlane/telemetry/stalls/monitor.py": 1,  # when a stall was
    "proxy/tokenlane/tokens/chat/harmony.py": 1,  # the date that gpt-oss is told
    "proxy/tokenlane/tokens/chat/template.py": 1,  # what a chat template may print
}


@pytest.mark.row("O10")
def test_the_wall_clock_is_only_shown() -> None:
    found: dict[str, int] = {}
    for path in sorted((ROOT / "proxy").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("proxy/tokenlane/simulator"):
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

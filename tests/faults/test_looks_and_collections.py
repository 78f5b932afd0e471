"""The watchdog looks at a thread while collections run finalizers, which give the GIL away: it sees
frames, and nothing else."""

import subprocess
import sys

from tests.paths import ROOT

# Frames of many sizes, so that the memory of one that ended is no frame where the next one stands.
# Collections begin at almost every new object, those that the walk itself makes included.
LOOKED_AT = r"""
import gc, sys, threading, time
from tokenlane.telemetry.stalls.watchdog import stack_of

class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        time.sleep(0)

steps = {"Cycle": Cycle}
steps["steps"] = steps
for size in range(40):
    given = "".join(f", a{n}=0" for n in range(size))
    own = "; ".join(f"b{n} = (left, {n})" for n in range(size % 7 + 1))
    exec(
        f"def step{size}(left{given}):\n"
        f"    {own}\n"
        f"    if left <= 0: return Cycle()\n"
        f"    return steps[(left * 7 + {size}) % 40](left - 1)\n",
        steps,
    )
for size in range(40):
    steps[size] = steps[f"step{size}"]
ident, looks, until_s = threading.get_ident(), [], time.monotonic() + 4.0

def look():
    while time.monotonic() < until_s:
        assert len(stack_of(ident)) > 0
        looks.append(1)
        time.sleep(0.00002)
    looks.append("ended")

gc.set_threshold(20, 3, 3)
sys.setswitchinterval(1e-5)
threading.Thread(target=look, daemon=True).start()
turn = 0
while time.monotonic() < until_s + 0.2:
    turn += 1
    steps[turn % 40](10 + turn % 17)
assert looks[-1] == "ended" and gc.isenabled(), looks[-3:]
"""


def test_a_look_survives_collections() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", LOOKED_AT],
        env={"PYTHONPATH": str(ROOT / "proxy")},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")

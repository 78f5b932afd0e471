"""wrk: the scripts it runs and the report it prints. Pure but for `run`.

Invariants:
- Bodies are built once, in wrk's init or by joining prepared parts: wrk must not be the limit.
- A report with socket errors or non-2xx answers keeps them: a fast error is not throughput.
"""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.tools.processes import BenchError

# What the canned replicas say in `usage`.
TOKENS_HEADER = "X-Prompt-Tokens"
# Of a number in a body: enough that the runs of a whole bench share none.
DIGITS = 11
UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


class Report(msgspec.Struct, frozen=True):
    """What wrk measured. `errors`: socket errors and timeouts; `refused`: non-2xx answers."""

    requests_per_s: float
    requests: int
    p50_s: float
    p99_s: float
    errors: int
    refused: int


def seconds(text: str) -> float:
    """wrk's duration, as `812.00us` or `1.20ms`."""
    found = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text)
    if found is None:
        raise BenchError(f"wrk printed a duration of an unknown form: {text!r}")
    return float(found[1]) * UNITS_S[found[2]]


def parse(text: str) -> Report:
    """wrk's printed report with --latency."""
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    count = re.search(r"(\d+) requests in", text)
    latency = {
        int(found[1]): seconds(found[2])
        for found in re.finditer(r"^\s+(\d+)(?:\.\d+)?%\s+(\S+)\s*$", text, re.MULTILINE)
    }
    if rate is None or count is None or not {50, 99} <= latency.keys():
        raise BenchError(f"wrk printed no report: {text[-500:]!r}")
    errors = re.search(
        r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text
    )
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return Report(
        requests_per_s=float(rate[1]),
        requests=int(count[1]),
        p50_s=latency[50],
        p99_s=latency[99],
        errors=sum(int(one) for one in errors.groups()) if errors else 0,
        refused=int(refused[1]) if refused else 0,
    )


def quoted(body: bytes) -> str:
    """A Lua string of these bytes."""
    escaped = body.decode("ascii").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def script_of_bodies(path: str, bodies: Sequence[bytes], tokens: Sequence[int]) -> str:
    """Lua that sends these bodies in turn, each formatted once. tokens: of each prompt; see
    `bench.tools.canned`."""
    listed = ",\n".join(f"{{{quoted(body)}, {count}}}" for body, count in zip(bodies, tokens))
    return f"""\
local bodies = {{
{listed}
}}
local requests, turn = {{}}, 0
function init(args)
  for index, body in ipairs(bodies) do
    local headers = {{ ["Content-Type"] = "application/json", ["{TOKENS_HEADER}"] = body[2] }}
    requests[index] = wrk.format("POST", "{path}", headers, body[1])
  end
end
function request()
  turn = turn % #requests + 1
  return requests[turn]
end
"""


def script_of_parts(
    path: str, parts: Sequence[tuple[bytes, bytes]], tokens: Sequence[int], first: int
) -> str:
    """Lua that sends each (before, after) in turn around a number as `spelled`, from `first` on.
    tokens: as above."""
    listed = ",\n".join(
        f"{{{quoted(before)}, {quoted(after)}, {count}}}"
        for (before, after), count in zip(parts, tokens)
    )
    return f"""\
local parts = {{
{listed}
}}
local number = {first}
local heads = {{}}
function init(args)
  local host = string.format("%s:%s", wrk.host, wrk.port)
  for index, part in ipairs(parts) do
    heads[index] = "POST {path} HTTP/1.1\\r\\nHost: " .. host ..
      "\\r\\nContent-Type: application/json\\r\\n{TOKENS_HEADER}: " .. part[3] ..
      "\\r\\nContent-Length: " .. (#part[1] + {2 * DIGITS} + #part[2]) .. "\\r\\n\\r\\n" .. part[1]
  end
end
function request()
  number = number + 1
  local index = number % #parts + 1
  local spelled = string.gsub(string.format("%0{DIGITS}d", number), "%d", "%0 ")
  return heads[index] .. spelled .. parts[index][2]
end
"""


def spelled(number: int) -> bytes:
    """A number's digits, apart: so each is a token, and all prompts have equally many."""
    return b"".join([b"%c " % digit for digit in b"%0*d" % (DIGITS, number)])


def with_pauses(script: str, pause_ms: int) -> str:
    """The same requests, each this long after the answer to the one before on its connection."""
    return f"{script}function delay() return {pause_ms} end\n"


def run(url: str, script: Path, *, seconds_s: int, core: int, connections: int = 32) -> Report:
    """One run of one thread on one core against a URL."""
    argv = ["taskset", "-c", str(core), "wrk", "-t1", f"-c{connections}", f"-d{seconds_s}s"]
    argv += ["--latency", "--timeout", "10s", "-s", str(script), url]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"wrk failed (exit {done.returncode}): {done.stderr[-500:]}")
    return parse(done.stdout)

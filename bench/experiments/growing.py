"""What an agent's next turn costs while its conversation grows: the gateway beside aiohttp's proxy.

    python -m bench growing [--rounds 5] [--tokens 80000]

Agents whose conversations grow to a hundred turns, sent one behind the other as they grow, 16 at a
time, none of which was ever seen before; CPU per request of the proxy's whole process tree, rounds
alternated, the first body of each agent aside. Three kinds: one call in each turn, as all agents do
it here; one to three calls, with something said or nothing, in a sequence that no other has; and
those with as many tools, and as long, as a coding agent has.
`throughput` sends the same last turns again and again: there every sequence is known soon.
"""

import argparse
import http.client
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any, NamedTuple

from bench.loads import workload
from bench.loads.prompts import agent
from bench.loads.throughput_bodies import prompt_tokens
from bench.loads.workload import CHAT
from bench.tools import machine
from bench.tools.canned import Canned
from bench.tools.processes import BenchError, free_ports, need_tools, say, two_cores
from bench.tools.statistics import Cell, median, ratio, table
from bench.tools.systems import Proxy, aiohttp_proxy, gateway

AGENTS, TURNS, SENT = 16, 100, 25
# 20 tools, 20 KB.
TOOLS, DESCRIBED_BYTES, ARGUMENTS, ARGUMENT_BYTES = 20, 400, 5, 60


class Kind(NamedTuple):
    """Of agents. mixed: they call one to three tools in a turn; tools: those they may call."""

    mixed: bool
    tools: list[dict[str, Any]]


def tool(number: int) -> dict[str, Any]:
    """A tool as coding agents describe them."""
    arguments = {
        f"argument_{at}": {
            "type": "string",
            "description": workload.text(ARGUMENT_BYTES, ARGUMENTS * number + at),
        }
        for at in range(ARGUMENTS)
    }
    return {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": workload.text(DESCRIBED_BYTES, number),
            "parameters": {"type": "object", "properties": arguments, "required": ["argument_0"]},
        },
    }


KINDS = {
    "one call a turn": Kind(False, workload.TOOLS),
    "a sequence nobody had": Kind(True, workload.TOOLS),
    "the same, with 20 tools": Kind(True, [tool(number) for number in range(TOOLS)]),
}


def bodies(tokens: int, seed: int, kind: Kind) -> list[bytes]:
    """The last turns of agents as they grow: the first of all, then the next of all."""
    told = [agent(tokens, TURNS, seed + number, mixed=kind.mixed) for number in range(AGENTS)]
    return [
        workload.body_of([one for turn in turns[: TURNS - left] for one in turn], tools=kind.tools)
        for left in reversed(range(SENT))
        for turns in told
    ]


def cpu_us(proxy: Proxy, sent: list[bytes], tokens: list[int]) -> float:
    """CPU per request of all but each agent's first body."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    before_s = 0.0
    for number, body in enumerate(sent):
        if number == AGENTS:
            before_s = proxy.process.cpu_s()
        # What the canned answer says of its prompt.
        headers = {"Content-Type": "application/json", "X-Prompt-Tokens": str(tokens[number])}
        connection.request("POST", CHAT, body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != HTTPStatus.OK:
            raise BenchError(f"{proxy.name} answers {answer.status}")
    used_s = proxy.process.cpu_s() - before_s
    connection.close()
    return used_s / (len(sent) - AGENTS) * 1e6


def measured(rounds: int, tokens: int) -> dict[str, dict[str, list[float]]]:
    """By kind and proxy, the CPU per request in each round."""
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
    core, load_core = two_cores()
    with ExitStack() as stack:
        canned = stack.enter_context(Canned(free_ports(4), load_core))
        proxies = [
            stack.enter_context(gateway(canned.urls, core)),
            stack.enter_context(aiohttp_proxy(canned.urls, core)),
        ]
        for number in range(rounds):
            for place, (kind, agents) in enumerate(KINDS.items()):
                sent = bodies(tokens, 1_000_000 * (number + 1) + 1000 * place, agents)
                counts = prompt_tokens(sent)
                for proxy in proxies if number % 2 else proxies[::-1]:
                    cost = cpu_us(proxy, sent, counts)
                    found[kind].setdefault(proxy.name, []).append(cost)
                    say(f"  {kind} round {number + 1}/{rounds} {proxy.name}: {cost:,.0f} µs")
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench growing", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=80_000, help="of a whole conversation")
    options = parser.parse_args()
    need_tools("nginx")
    found = measured(options.rounds, options.tokens)
    rows: list[list[Cell]] = []
    for kind, costs in found.items():
        own, other = median(costs["tokenlane"]), median(costs["aiohttp"])
        rows.append([kind, own, other, ratio(other, own)])
    print(machine.describe(machine.facts()))
    print(table(["agents' next turns", "CPU µs", "aiohttp", "aiohttp / ours"], rows))


if __name__ == "__main__":
    main()

"""What a routing decision costs the loop, and what the index costs in memory.

    python -m bench routing [--blocks N] [--json]

Four tables: a decision (lookup, load and cost; the insertion apart) for a prompt of 100,000 tokens
in blocks of 16 as replicas grow from 4 to 256, with their KV events and without; the insertion of
that prompt; and an index of N million distinct blocks, its own estimate beside what the process
grew by; and what tenants' shares of the index cost while one of them floods it.

Invariants:
- The router is the product's, with its index filled so that every replica holds a part of the
  prompt: no lookup ends at the first block.
- A percentile is of single decisions, not of batches, in CPU time: a neighbour on the machine must
  not look like a slow lookup.
"""

import argparse
import gc
import json
import os
import time
from array import array
from pathlib import Path
from random import Random
from typing import Any

from tokenlane.config.settings import RoutingSettings
from tokenlane.fleet_state import CacheChange, FleetState, ReplicaState, Standing
from tokenlane.prompt import Prompt
from tokenlane.routing.decision import Query
from tokenlane.routing.index import PrefixIndex
from tokenlane.routing.lease import LocalBoard
from tokenlane.routing.router import Router
from tokenlane.tokens.blocks import block_hashes

PROMPT_TOKENS = 100_000
BLOCK_TOKENS = 16
FLEETS = (4, 8, 16, 32, 64, 128, 256)
TENANTS = (2, 10, 100, 1000)
FLOODED_BLOCKS = 20_000  # what the flooded replica's cache holds
DECISIONS = 2000


def _prompt(random: Random) -> Prompt:
    ids = array("I", [random.randrange(100_000) for _ in range(PROMPT_TOKENS)]).tobytes()
    return Prompt((ids,), block_hashes(ids, BLOCK_TOKENS), BLOCK_TOKENS, PROMPT_TOKENS)


def _router(replicas: int) -> Router:
    router = Router(RoutingSettings(), LocalBoard(), Random(1))
    states = [
        ReplicaState(id=f"r{slot}", slot=slot, url="", up=True, block_tokens=BLOCK_TOKENS)
        for slot in range(replicas)
    ]
    router.update(FleetState(1, tuple(states)))
    return router


def decisions(replicas: int) -> dict[str, float]:
    """Microseconds of a decision and of an insertion, with so many replicas."""
    random = Random(replicas)
    router, prompt = _router(replicas), _prompt(random)
    query = Query(prompt.blocks, prompt.block_tokens, prompt.tokens, prompt.tokens, 1)
    for slot in range(replicas):
        held = random.randrange(1, len(prompt.blocks) // 8)
        router.index.insert(slot, prompt.blocks[: 8 * held])
        router._board.add(slot, 3, random.randrange(50_000))  # noqa: SLF001 - a load to price
    costs_us = _decided(router, query)
    # The same where replicas publish what they hold, and prompts are on their way to them.
    for slot in range(replicas):
        held = router.index.match(slot, prompt.blocks)
        events = CacheChange(
            slot, 0, 1, Standing.COMPLETE, BLOCK_TOKENS, stored=prompt.blocks[: 8 * held]
        )
        router.cached(events)
        router.pending.insert(slot, random.randbytes(8 * 1000), 0.0)
    events_us = _decided(router, query)
    inserts_us = []
    for _ in range(20):
        blocks = _prompt(random).blocks
        began_s = time.thread_time()
        router.index.insert(0, blocks)
        inserts_us.append((time.thread_time() - began_s) * 1e6)
    inserts_us.sort()
    return {
        "replicas": replicas,
        "decision_p50_us": costs_us[len(costs_us) // 2],
        "decision_p99_us": costs_us[len(costs_us) * 99 // 100],
        "decisions_per_s": 1e6 * len(costs_us) / sum(costs_us),
        "events_p50_us": events_us[len(events_us) // 2],
        "events_p99_us": events_us[len(events_us) * 99 // 100],
        "insertion_p50_us": inserts_us[len(inserts_us) // 2],
    }


def _decided(router: Router, query: Query) -> list[float]:
    """Microseconds of each of DECISIONS, the quickest first."""
    costs_us = []
    for at in range(DECISIONS):
        began_s = time.thread_time()
        router.decide(query, router.eligible(None, at), at)
        costs_us.append((time.thread_time() - began_s) * 1e6)
    return sorted(costs_us)


def _resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def index_of(blocks: int, prompt_blocks: int) -> dict[str, Any]:
    """Memory of an index of so many distinct blocks in prompts of one length, over 8 replicas."""
    gc.collect()
    before_bytes = _resident_bytes()
    index = PrefixIndex(blocks)
    random = Random(7)
    for at in range(blocks // prompt_blocks):
        index.insert(at % 8, random.randbytes(8 * prompt_blocks))
    grown_bytes = _resident_bytes() - before_bytes
    return {
        "blocks": len(index),
        "prompt_blocks": prompt_blocks,
        "estimated_bytes": index.size_bytes,
        "resident_bytes": grown_bytes,
        "bytes_per_block": grown_bytes / len(index),
    }


def shares(tenants: int) -> dict[str, Any]:
    """What an insertion of 625 new blocks takes while one tenant floods an index in which so many
    others have two prompts of 8 blocks each, and what of theirs is known afterwards."""
    random = Random(3)
    index = PrefixIndex(FLOODED_BLOCKS, keep_s=120.0)
    used = [(f"t{number % tenants}", random.randbytes(8 * 8)) for number in range(2 * tenants)]
    for tenant, blocks in used:
        index.insert(0, blocks, tenant)
    plain_us: list[float] = []
    turn_us: list[float] = []
    added_blocks = 2 * tenants * 8
    for number in range(3000):
        blocks = random.randbytes(8 * 625)
        # Where it would not fit, there is a turn.
        added_blocks += 625
        costs_us = turn_us if added_blocks > FLOODED_BLOCKS else plain_us
        added_blocks = 625 if added_blocks > FLOODED_BLOCKS else added_blocks
        began_s = time.thread_time()
        index.insert(0, blocks, "flood", 0.001 * number)
        costs_us.append((time.thread_time() - began_s) * 1e6)
    kept = sum(index.match(0, blocks, tenant) == len(blocks) // 8 for tenant, blocks in used)
    return {
        "tenants": tenants,
        "insertion_p50_us": sorted(plain_us)[len(plain_us) // 2],
        "turn_p50_us": sorted(turn_us)[len(turn_us) // 2],
        "turn_max_us": max(turn_us),
        "kept": f"{kept} of {len(used)}",
        "held_of_capacity": index.held_blocks(0) / FLOODED_BLOCKS,
    }


def main() -> None:
    """Prints the tables, or JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m bench routing", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--blocks", type=int, default=10_000_000, metavar="N")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [decisions(replicas) for replicas in FLEETS]
    sizes = [index_of(args.blocks, prompt_blocks) for prompt_blocks in (6250, 250, 20)]
    floods = [shares(tenants) for tenants in TENANTS]
    if args.json:
        print(json.dumps({"decisions": rows, "index": sizes, "shares": floods}, indent=2))
        return
    print("replicas  decision p50      p99  decisions/s  with events      p99  insertion p50")
    for row in rows:
        print(
            f"{row['replicas']:8} {row['decision_p50_us']:10.0f} us"
            f" {row['decision_p99_us']:5.0f} us {row['decisions_per_s']:12,.0f}"
            f" {row['events_p50_us']:9.0f} us {row['events_p99_us']:5.0f} us"
            f" {row['insertion_p50_us']:11.0f} us"
        )
    print("\n      blocks  in prompts of  estimated   resident  bytes/block")
    for size in sizes:
        print(
            f"{size['blocks']:12,} {size['prompt_blocks']:14,}"
            f" {size['estimated_bytes'] / 1e6:7.0f} MB {size['resident_bytes'] / 1e6:7.0f} MB"
            f" {size['bytes_per_block']:12.1f}"
        )

    print("\n tenants  insertion p50  with a turn p50      max     prompts kept  held of capacity")
    for flood in floods:
        print(
            f"{flood['tenants']:8} {flood['insertion_p50_us']:11.1f} us"
            f" {flood['turn_p50_us']:13.1f} us {flood['turn_max_us']:5.0f} us"
            f" {flood['kept']:>16} {flood['held_of_capacity']:17.2f}"
        )


if __name__ == "__main__":
    main()

"""`tokenlane replay`: its flags, and what it does with them."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenlane.cli.output import say_lines
from tokenlane.config.flags import config_flag, loaded
from tokenlane.errors import ConfigError

DEFAULT_POLICIES = "affinity,queue-own,text-tree,least-requests,round-robin"


def _share(text: str) -> float:
    number = text.removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = 0.0
    if not text.endswith("%") or not 0 < share <= 10:
        raise argparse.ArgumentTypeError("must look like 25%")
    return share


# A flag, what stands for its value, how that is read, its default, its help.
# fmt: off
_FLAGS: tuple[tuple[str, str, Callable[[str], Any], Any, str], ...] = (
    ("--policy", "A,B", str, DEFAULT_POLICIES,
        f"policies and other routers' rules to compare (default: {DEFAULT_POLICIES})"),
    ("--replicas", "N", int, 4, "how many (default: 4)"),
    ("--cache", "P%", _share, 0.25,
        "all caches together, as a share of the trace's distinct blocks (default: 25%%)"),
    ("--cache-tokens", "T", int, None, "the cache of each replica in tokens, instead of a share"),
    ("--prefill", "T", float, 10_000.0, "tokens a replica prefills per second (default: 10000)"),
    ("--decode-cost", "X", float, 0.0,
        "each answer under way makes a prefill longer by this share (default: 0)"),
    ("--gateways", "K", int, None,
        "so many gateways, each request through any of them; they follow KV events"),
    ("--share-delay", "S", float, None,
        "they know what the others have in flight after S seconds (default: never)"),
    ("--spread", "SEED", int, None,
        "each arrival later by a random part of the tick of the trace's clock"),
    ("--model", "NAME", str, None, "of an access log with several models, this one"),
    ("--speed", "X", float, 1.0, "arrivals so much faster (default: 1)"),
    ("--first-s", "S", float, None, "only what arrives in the first S seconds"),
    ("--plot", "FILE.png", Path, None, "draw it, with matplotlib"),
)
# fmt: on


def flags(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own flags."""
    parser.add_argument(
        "trace",
        type=Path,
        metavar="TRACE",
        help="Mooncake JSONL, or an access log in JSON; gzipped or not",
    )
    for flag, metavar, kind, default, about in _FLAGS:
        parser.add_argument(flag, metavar=metavar, type=kind, default=default, help=about)
    parser.add_argument(
        "--no-events",
        dest="events",
        action="store_false",
        help="no KV events: they tell each other which prefixes they routed where",
    )
    parser.add_argument(
        "--share-prefixes", action="store_true", help="and do so with KV events too"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    config_flag(parser, bare=False)


def run(args: argparse.Namespace) -> int:
    """Replays and reports. Raises ConfigError for what the operator got wrong."""
    from tokenlane.replay import access_traces
    from tokenlane.replay import trace as traces
    from tokenlane.replay.baselines import BASELINES
    from tokenlane.replay.gateways import GatewayShape
    from tokenlane.replay.report import ReplayReport
    from tokenlane.replay.run import FleetShape
    from tokenlane.replay.timed_fleet import split
    from tokenlane.routing.policies import check_policy

    settings = loaded(args).settings.routing
    names = list(dict.fromkeys(name.strip() for name in args.policy.split(",") if name.strip()))
    for name in names:
        if name not in BASELINES:
            check_policy(name, "--policy", also=BASELINES)
    if args.replicas < 1 or args.speed <= 0:
        raise ConfigError("replay: --replicas and --speed must be positive")
    if args.prefill <= 0 or (args.cache_tokens is not None and args.cache_tokens < 1):
        raise ConfigError("replay: --prefill and --cache-tokens must be positive")
    if args.gateways is None and (args.share_delay is not None or not args.events):
        raise ConfigError("replay: --share-delay and --no-events need --gateways")
    if args.share_prefixes and args.share_delay is None:
        raise ConfigError("replay: --share-prefixes needs --share-delay")
    if (args.gateways is not None and args.gateways < 1) or (args.share_delay or 0.0) < 0:
        raise ConfigError("replay: --gateways must be positive, --share-delay not negative")
    trace = access_traces.read(args.trace, args.model)
    if trace is None:
        trace = traces.read(args.trace)
    # The cache is a share of the whole trace, however much of it is replayed.
    cache_blocks = split(trace.working_set_blocks, args.cache, args.replicas)
    if args.cache_tokens is not None:
        cache_blocks = max(args.cache_tokens // trace.block_tokens, 1)
    if args.first_s is not None:
        trace = trace.first(args.first_s)
        if not trace.requests:
            raise ConfigError("replay: --first-s leaves no request")
    if args.spread is not None:
        trace = trace.spread(args.spread)
    shape = FleetShape(args.replicas, cache_blocks, args.prefill, max(args.decode_cost, 0.0))
    gateways = None
    if args.gateways is not None:
        seed = 1 if args.spread is None else args.spread
        gateways = GatewayShape(
            args.gateways, args.share_delay, args.events, seed, args.share_prefixes
        )
    report = ReplayReport.of(trace.faster(args.speed), shape, settings, names, gateways)
    say_lines(json.dumps(report.to_json(), indent=2) if args.json else report.table())
    if args.plot is not None:
        report.plot(args.plot)
    return 0

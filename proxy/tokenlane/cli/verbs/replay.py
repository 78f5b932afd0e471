"""`tokenlane replay`: its flags, and what it does with them."""

import argparse
import json
from pathlib import Path

from tokenlane.cli.verbs.output import say
from tokenlane.config.flags import config_flag, loaded
from tokenlane.errors import ConfigError

DEFAULT_POLICIES = "affinity,queue-own,text-tree,least-requests,round-robin"


def flags(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own flags."""
    parser.add_argument(
        "trace",
        type=Path,
        metavar="TRACE",
        help="Mooncake JSONL, or an access log in JSON; gzipped or not",
    )
    parser.add_argument(
        "--policy",
        dest="policies",
        default=DEFAULT_POLICIES,
        metavar="A,B",
        help=f"policies and other routers' rules to compare (default: {DEFAULT_POLICIES})",
    )
    parser.add_argument(
        "--replicas", type=int, default=4, metavar="N", help="how many (default: 4)"
    )
    parser.add_argument(
        "--cache",
        type=_share,
        default=0.25,
        metavar="P%",
        help="all caches together, as a share of the trace's distinct blocks (default: 25%%)",
    )
    parser.add_argument(
        "--cache-tokens",
        type=int,
        metavar="T",
        help="the cache of each replica in tokens, instead of a share",
    )
    parser.add_argument(
        "--prefill",
        type=float,
        default=10_000.0,
        metavar="T",
        help="tokens a replica prefills per second (default: 10000)",
    )
    parser.add_argument(
        "--decode-cost",
        type=float,
        default=0.0,
        metavar="X",
        help="each answer under way makes a prefill longer by this share (default: 0)",
    )
    parser.add_argument(
        "--gateways",
        type=int,
        metavar="K",
        help="so many gateways, each request through any of them; they follow KV events",
    )
    parser.add_argument(
        "--share-delay",
        type=float,
        metavar="S",
        help="they know what the others have in flight after S seconds (default: never)",
    )
    parser.add_argument(
        "--no-events",
        dest="events",
        action="store_false",
        help="no KV events: they tell each other which prefixes they routed where",
    )
    parser.add_argument(
        "--share-prefixes", action="store_true", help="and do so with KV events too"
    )
    parser.add_argument(
        "--spread",
        type=int,
        metavar="SEED",
        help="each arrival later by a random part of the tick of the trace's clock",
    )
    parser.add_argument(
        "--model", metavar="NAME", help="of an access log with several models, this one"
    )
    parser.add_argument(
        "--speed", type=float, default=1.0, metavar="X", help="arrivals so much faster (default: 1)"
    )
    parser.add_argument(
        "--first-s", type=float, metavar="S", help="only what arrives in the first S seconds"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw it, with matplotlib")
    config_flag(parser, bare=False)


def _share(text: str) -> float:
    number = text.removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = 0.0
    if not text.endswith("%") or not 0 < share <= 10:
        raise argparse.ArgumentTypeError("must look like 25%")
    return share


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
    names = list(dict.fromkeys(name.strip() for name in args.policies.split(",") if name.strip()))
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
    say(json.dumps(report.to_json(), indent=2) if args.json else report.table())
    if args.plot is not None:
        report.plot(args.plot)
    return 0

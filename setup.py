"""The compiled build: hot modules of the data path as C extensions, made by mypyc.

    TOKENLANE_COMPILE=1 pip install --no-build-isolation .      (needs a C compiler and mypy)

Without the variable, or from the source tree, the same modules run as plain Python (but
proxy/routing/xxh3.py, which stands aside there). They stay plain Python with two habits that mypyc
asks for: a class attribute that is not a default is a ClassVar, and a class inherits from no class
of the standard library (protocols are recognized by their methods). Modules whose msgspec structs
are decoded are not compiled: msgspec reads their annotations at run time.
"""

import os
import sys

from setuptools import setup

COMPILED = [
    "proxy/answer_lines.py",
    "proxy/asked.py",
    "proxy/attempt.py",
    "proxy/fleet.py",
    "proxy/gateway.py",
    "proxy/life.py",
    "proxy/prompts.py",
    "proxy/recorder.py",
    "proxy/routes.py",
    "proxy/routing/blocks.py",
    "proxy/routing/budget.py",
    "proxy/routing/candidates.py",
    "proxy/routing/cost.py",
    "proxy/routing/decision.py",
    "proxy/routing/generation.py",
    "proxy/routing/health.py",
    "proxy/routing/hashset.py",
    "proxy/routing/index.py",
    "proxy/routing/lease.py",
    "proxy/routing/pending.py",
    "proxy/routing/policies/affinity.py",
    "proxy/routing/progress.py",
    "proxy/routing/ranks.py",
    "proxy/routing/recent.py",
    "proxy/routing/retry.py",
    "proxy/routing/router.py",
    "proxy/routing/siblings.py",
    "proxy/routing/truth.py",
    "proxy/routing/xxh3.py",
    "proxy/telemetry/board.py",
    "proxy/telemetry/heartbeat.py",
    "proxy/telemetry/metrics.py",
    "proxy/telemetry/stages.py",
    "proxy/tokens/cache.py",
    "proxy/tokens/conversation.py",
    "proxy/tokens/encode.py",
    "proxy/tokens/fast.py",
    "proxy/tokens/keys.py",
    "proxy/tokens/ladder.py",
    "proxy/tokens/openings.py",
    "proxy/tokens/prefixes.py",
    "proxy/tokens/residual.py",
    "proxy/tokens/segments.py",
    "proxy/tokens/shapes.py",
    "proxy/tokens/service.py",
    "proxy/tokens/short.py",
    "proxy/tokens/template.py",
    "proxy/tokens/tokenizer.py",
    "proxy/wire/chunked.py",
    "proxy/wire/connection.py",
    "proxy/wire/deadline.py",
    "proxy/wire/exchange.py",
    "proxy/wire/headers.py",
    "proxy/wire/heads.py",
    "proxy/wire/pool.py",
    "proxy/wire/relay.py",
    "proxy/wire/sse.py",
    "proxy/wire/server.py",
    "proxy/wire/typed.py",
    "proxy/wire/upstream.py",
]

# An installer runs this file three times, twice of them only for the metadata.
METADATA = {"egg_info", "dist_info"}

if os.environ.get("TOKENLANE_COMPILE") == "1" and METADATA.isdisjoint(sys.argv):
    from mypyc.build import mypycify  # a build dependency of the compiled build alone

    setup(ext_modules=mypycify(COMPILED, opt_level="3"))
else:
    setup()

"""The compiled build: hot modules of the data path as C extensions, made by mypyc.

    TOKENLANE_COMPILE=1 pip install --no-build-isolation .      (needs a C compiler and mypy)

Without the variable, or from the source tree, the same modules run as plain Python (but
proxy/tokenlane/tokens/xxh3.py, which stands aside there). They stay plain Python with two habits
that mypyc asks for: a class attribute that is not a default is a ClassVar, and a class inherits
from no class of the standard library (protocols are recognized by their methods). Modules whose
msgspec structs are decoded are not compiled: msgspec reads their annotations at run time.
"""

import os
import sys

from setuptools import setup

COMPILED = [
    "proxy/tokenlane/gateway/attempt.py",
    "proxy/tokenlane/gateway/fleet.py",
    "proxy/tokenlane/gateway/id_trust.py",
    "proxy/tokenlane/gateway/plan.py",
    "proxy/tokenlane/gateway/planner.py",
    "proxy/tokenlane/gateway/prompt_reader.py",
    "proxy/tokenlane/gateway/query_builder.py",
    "proxy/tokenlane/gateway/recorder.py",
    "proxy/tokenlane/gateway/replica_body.py",
    "proxy/tokenlane/gateway/request.py",
    "proxy/tokenlane/gateway/request_record.py",
    "proxy/tokenlane/http/acceptor.py",
    "proxy/tokenlane/http/chunked.py",
    "proxy/tokenlane/http/codel.py",
    "proxy/tokenlane/http/connection.py",
    "proxy/tokenlane/http/connection_states.py",
    "proxy/tokenlane/http/deadline.py",
    "proxy/tokenlane/http/exchange.py",
    "proxy/tokenlane/http/headers.py",
    "proxy/tokenlane/http/heads.py",
    "proxy/tokenlane/http/intake.py",
    "proxy/tokenlane/http/local_reply.py",
    "proxy/tokenlane/http/pool.py",
    "proxy/tokenlane/http/request_body.py",
    "proxy/tokenlane/http/server.py",
    "proxy/tokenlane/http/server_state.py",
    "proxy/tokenlane/http/upstream.py",
    "proxy/tokenlane/protocols/routes.py",
    "proxy/tokenlane/relay/named_events.py",
    "proxy/tokenlane/relay/relay_states.py",
    "proxy/tokenlane/relay/response.py",
    "proxy/tokenlane/relay/sse.py",
    "proxy/tokenlane/routing/candidates.py",
    "proxy/tokenlane/routing/cost.py",
    "proxy/tokenlane/routing/decision.py",
    "proxy/tokenlane/routing/generation.py",
    "proxy/tokenlane/routing/hashset.py",
    "proxy/tokenlane/routing/health.py",
    "proxy/tokenlane/routing/index.py",
    "proxy/tokenlane/routing/lease.py",
    "proxy/tokenlane/routing/pending.py",
    "proxy/tokenlane/routing/policies/affinity.py",
    "proxy/tokenlane/routing/progress.py",
    "proxy/tokenlane/routing/ranks.py",
    "proxy/tokenlane/routing/recent.py",
    "proxy/tokenlane/routing/retry.py",
    "proxy/tokenlane/routing/router.py",
    "proxy/tokenlane/routing/truth.py",
    "proxy/tokenlane/telemetry/load_board.py",
    "proxy/tokenlane/telemetry/metrics/segment.py",
    "proxy/tokenlane/telemetry/stalls/heartbeat.py",
    "proxy/tokenlane/telemetry/stalls/stages.py",
    "proxy/tokenlane/tokens/blocks.py",
    "proxy/tokenlane/tokens/caches/lru.py",
    "proxy/tokenlane/tokens/caches/openings.py",
    "proxy/tokenlane/tokens/caches/prefixes.py",
    "proxy/tokenlane/tokens/caches/segments.py",
    "proxy/tokenlane/tokens/caches/shapes.py",
    "proxy/tokenlane/tokens/chat/conversation.py",
    "proxy/tokenlane/tokens/chat/minijinja_template.py",
    "proxy/tokenlane/tokens/chat/residual.py",
    "proxy/tokenlane/tokens/chat/template.py",
    "proxy/tokenlane/tokens/chat/template_variables.py",
    "proxy/tokenlane/tokens/encode/encoder.py",
    "proxy/tokenlane/tokens/encode/fastokens_encoder.py",
    "proxy/tokenlane/tokens/engines.py",
    "proxy/tokenlane/tokens/keys.py",
    "proxy/tokenlane/tokens/ladder.py",
    "proxy/tokenlane/tokens/rungs/short.py",
    "proxy/tokenlane/tokens/service.py",
    "proxy/tokenlane/tokens/tokenizer.py",
    "proxy/tokenlane/tokens/xxh3.py",
]

# An installer runs this file three times, twice of them only for the metadata.
METADATA = {"egg_info", "dist_info"}

if os.environ.get("TOKENLANE_COMPILE") == "1" and METADATA.isdisjoint(sys.argv):
    from mypyc.build import mypycify  # a build dependency of the compiled build alone

    setup(ext_modules=mypycify(COMPILED, opt_level="3"))
else:
    setup()

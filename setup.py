"""The hot modules of the data path as C extensions, made by mypyc, wherever a wheel is built.

    pip install .                          compiled where a C compiler is found, plain where none is
    TOKENLANE_COMPILE=1 pip install .      compiled, or it fails
    TOKENLANE_COMPILE=0 pip install .      plain
    MYPYC_OPT_LEVEL=1                      compiled in half the time, for tests: a tenth more
                                           instructions (the compiler's level, 2 otherwise)

An editable install, and the source tree, run the same modules as plain Python (but
proxy/tokenlane/tokens/xxh3.py, which stands aside there). They stay plain Python with two habits
that mypyc asks for: a class attribute that is not a default is a ClassVar, and a class inherits
from no class of the standard library (protocols are recognized by their methods). Modules whose
msgspec structs are decoded are not compiled: msgspec reads their annotations at run time. Of the
structs in those that are, the options (`eq=False`, `frozen=True`) hold in plain Python alone.
"""

import os
import re
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path

from setuptools import setup

COMPILED = [
    "proxy/tokenlane/gateway/attempt.py",
    "proxy/tokenlane/gateway/fleet.py",
    "proxy/tokenlane/gateway/forwarding.py",
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
    "proxy/tokenlane/http/body_pieces.py",
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
    "proxy/tokenlane/parts.py",
    "proxy/tokenlane/protocols/dialects.py",
    "proxy/tokenlane/protocols/inspection.py",
    "proxy/tokenlane/protocols/prompt_fields.py",
    "proxy/tokenlane/protocols/routes.py",
    "proxy/tokenlane/relay/named_events.py",
    "proxy/tokenlane/relay/relay_states.py",
    "proxy/tokenlane/relay/response.py",
    "proxy/tokenlane/relay/sse.py",
    "proxy/tokenlane/relay/usage.py",
    "proxy/tokenlane/routing/candidates.py",
    "proxy/tokenlane/routing/cost.py",
    "proxy/tokenlane/routing/decision.py",
    "proxy/tokenlane/routing/generation.py",
    "proxy/tokenlane/routing/hash_store.py",
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
    "proxy/tokenlane/runtime/clock.py",
    "proxy/tokenlane/runtime/cohorts.py",
    "proxy/tokenlane/telemetry/load_board.py",
    "proxy/tokenlane/telemetry/metrics/segment.py",
    "proxy/tokenlane/telemetry/stalls/heartbeat.py",
    "proxy/tokenlane/telemetry/stalls/stages.py",
    "proxy/tokenlane/tokens/blocks.py",
    "proxy/tokenlane/tokens/body_marks.py",
    "proxy/tokenlane/tokens/caches/body_prefixes.py",
    "proxy/tokenlane/tokens/caches/doorkeeper.py",
    "proxy/tokenlane/tokens/caches/listed_ids.py",
    "proxy/tokenlane/tokens/caches/lru.py",
    "proxy/tokenlane/tokens/caches/marked.py",
    "proxy/tokenlane/tokens/caches/openings.py",
    "proxy/tokenlane/tokens/caches/prefixes.py",
    "proxy/tokenlane/tokens/caches/segments.py",
    "proxy/tokenlane/tokens/caches/shapes.py",
    "proxy/tokenlane/tokens/chat/conversation.py",
    "proxy/tokenlane/tokens/chat/dialects.py",
    "proxy/tokenlane/tokens/chat/forms.py",
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
    "proxy/tokenlane/tokens/model_tokenizers.py",
    "proxy/tokenlane/tokens/next_turn.py",
    "proxy/tokenlane/tokens/service.py",
    "proxy/tokenlane/tokens/tokenizer.py",
    "proxy/tokenlane/tokens/xxh3.py",
]

# Calls that stand only where something fails: a quarter of the generated code. Known as such, they
# stand apart from what every request runs, which then fits the caches of a CPU better.
FAILURES = """\
struct _object;
#define COLD __attribute__((cold))
COLD void CPy_AddTraceback(const char *, const char *, int, struct _object *);
COLD void CPy_TypeErrorTraceback(
    const char *, const char *, int, struct _object *, const char *, struct _object *);
COLD void CPy_AttributeError(
    const char *, const char *, const char *, const char *, int, struct _object *);
COLD void CPy_TypeError(const char *, struct _object *);
COLD void CPy_Raise(struct _object *);
COLD void CPy_Reraise(void);
COLD void PyErr_SetString(struct _object *, const char *);
#undef COLD
"""

# An installer runs this file several times, most of them for the metadata alone.
BUILDS = {"bdist_wheel", "build", "build_ext", "install"}


def compiles() -> bool:
    """Whether this run is to compile. Say so where it would, and cannot."""
    wanted = os.environ.get("TOKENLANE_COMPILE", "")
    if wanted == "0" or BUILDS.isdisjoint(sys.argv):
        return False
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    missing = [] if shutil.which(compiler) else [f"no C compiler ({compiler})"]
    missing += [] if headers.is_file() else [f"no {headers}"]
    if missing and wanted != "1":
        found = " and ".join(missing)
        sys.stderr.write(f"tokenlane: {found}: plain Python, about twice the CPU for a request\n")
        return False
    return True


def readme() -> str:
    """The README, its links leading to the repository: a package index has no docs/ beside it."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    home = project["urls"]["Homepage"]
    text = Path("README.md").read_text(encoding="utf-8")
    pictures = home.replace("github.com", "raw.githubusercontent.com") + "/main/"
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\1{pictures}", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\1{home}/blob/main/", text)


extensions = []
if compiles():
    from mypyc.build import mypycify  # imported only here: plain builds need no mypy

    # Of what is installed for a build, OpenTelemetry is no part: nothing compiled names it.
    lenient = ["--ignore-missing-imports", "--no-warn-unused-ignores"]
    level = os.environ.get("MYPYC_OPT_LEVEL", "2")
    extensions = mypycify([*lenient, *COMPILED], opt_level=level, debug_level="0")
    failures = Path("build/failures.h").absolute()
    failures.write_text(FAILURES, encoding="ascii")
    for extension in extensions:
        # Nobody else calls these functions: direct calls of one another, and no way to replace
        # them from outside.
        hidden = ["-fvisibility=hidden", "-fno-semantic-interposition"]
        apart = ["-freorder-blocks-and-partition", "-include", str(failures)]
        extension.extra_compile_args = [*extension.extra_compile_args, *hidden, *apart]

setup(
    ext_modules=extensions,
    long_description=readme(),
    long_description_content_type="text/markdown",
)

"""The bodies of the throughput experiment, as scripts of wrk."""

from collections.abc import Callable, Sequence

import msgspec

from bench.loads import workload
from bench.loads.workload import CHAT
from bench.tools import wrk
from bench.tools.demo_model import MODEL, MODEL_FOLDER
from tokenlane.protocols.bodies import ChatFields, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.tokenizer import Tokenizer

DISTINCT = 1000
PREFIXES = 32
QUESTIONS = 256
# Numbers of a run: as many requests as no run makes.
RUN_NUMBERS = 1_000_000


class Load(msgspec.Struct, frozen=True):
    """A kind of body. `script(turn)` is the Lua for one run; turns never repeat a unique tail."""

    name: str
    script: Callable[[int], str]


def prompt_tokens(bodies: Sequence[bytes]) -> list[int]:
    """What a replica would count of these prompts."""
    tokenizer = Tokenizer.load(MODEL, MODEL_FOLDER)
    asked = [inspect(Kind.CHAT, body) for body in bodies]
    return [len(tokenizer.chat_ids(one)) // 4 for one in asked if isinstance(one, ChatFields)]


def loads() -> list[Load]:
    """300 bytes from 1,000 distinct bodies, and all of them new; 16 KiB, of which 12 are one of 32
    system prompts and 4 are new, English and program text; and 390 KB, the turns 97 to 100 of 16
    conversations with a new question each, likewise, and of 16 agents that call a tool a turn."""
    small = [workload.sized(300, seed) for seed in range(DISTINCT)]
    tokens = prompt_tokens(small)
    made = [Load("300 B", lambda _: wrk.script_of_bodies(CHAT, small, tokens))]

    def numbered(name: str, parts: list[workload.Parts]) -> None:
        tokens = prompt_tokens([wrk.spelled(0).join(part) for part in parts])
        made.append(
            Load(name, lambda turn: wrk.script_of_parts(CHAT, parts, tokens, turn * RUN_NUMBERS))
        )

    numbered("300 B unique", [workload.sized_parts(300, seed) for seed in range(DISTINCT)])
    kinds = (("", workload.text), (" code", workload.code))
    for kind, write in kinds:
        systems, user = 12 * 1024, 4 * 1024
        shared = [
            workload.shared_prefix(systems, user, seed, PREFIXES, write)
            for seed in range(QUESTIONS)
        ]
        numbered(f"16 KiB{kind}", shared)
    for kind, write in kinds:
        numbered(f"390 KB{kind}", workload.last_turns(workload.LONG_BYTES, write))
    numbered("390 KB calls", workload.last_calls(workload.LONG_BYTES))
    return made

"""Time transformers and torch by themselves, in the Python that has vLLM.

Imports nothing of this project.

    PYTHON hf_stages.py < ASKED.json > SPENT.json

ASKED: `folder` of a model, `one` chat, `histories` (chats by number of turns), `batch` (chats),
`threads` (numbers of them) and `repeats`. SPENT: medians in ms: `one` by stage, `histories` by
turns and stage, `batch` by stage and threads. Collating pads ids into a tensor, as a batch is made.
"""

import functools
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Message = dict[str, str]


def median_ms(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of some work, after one run that warms."""
    work()
    taken = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began_s) * 1e3)
    return statistics.median(taken)


class Stages:
    """The stages of a request as transformers has them."""

    def __init__(self, folder: str) -> None:
        transformers: Any = importlib.import_module("transformers")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def template(self, chat: list[Message]) -> str:
        """Return a chat's text."""
        text: str = self.tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        )
        return text

    def tokenize(self, text: str) -> list[int]:
        """Return a text's ids."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def collate(self, batch: list[list[int]]) -> object:
        """Return the ids of a batch as one padded tensor, with its mask."""
        return self.tokenizer.pad({"input_ids": batch}, padding=True, return_tensors="pt")

    def timed(self, chat: list[Message], repeats: int) -> dict[str, float]:
        """Return the medians of one request's stages."""
        text = self.template(chat)
        ids = self.tokenize(text)
        return {
            "template": median_ms(lambda: self.template(chat), repeats),
            "tokenize": median_ms(lambda: self.tokenize(text), repeats),
            "collate": median_ms(lambda: self.collate([ids]), repeats),
        }

    def over_threads(
        self, batch: list[list[Message]], threads: list[int], repeats: int
    ) -> dict[str, dict[str, float]]:
        """Return the medians of a batch over threads, a request a job, by stage and threads."""
        works: dict[str, tuple[Callable[[Any], object], list[Any]]] = {
            "template": (self.template, batch),
            "tokenize": (self.tokenize, [self.template(chat) for chat in batch]),
        }
        spent: dict[str, dict[str, float]] = {stage: {} for stage in works}
        for count in threads:
            with ThreadPoolExecutor(count) as pool:
                for stage, (work, given) in works.items():
                    whole = functools.partial(_all_of, pool, work, given)
                    spent[stage][str(count)] = median_ms(whole, repeats)
        return spent


def _all_of(pool: ThreadPoolExecutor, work: Callable[[Any], object], given: list[Any]) -> object:
    return list(pool.map(work, given))


def main() -> None:
    """Read what is asked from stdin, write what it took to stdout."""
    asked = json.load(sys.stdin)
    stages, repeats = Stages(asked["folder"]), asked["repeats"]
    versions = {
        name: importlib.import_module(name).__version__ for name in ("transformers", "torch")
    }
    spent = {
        "versions": versions,
        "one": stages.timed(asked["one"], repeats * 10),
        "histories": {
            turns: stages.timed(chat, repeats) for turns, chat in asked["histories"].items()
        },
        "batch": stages.over_threads(asked["batch"], asked["threads"], repeats),
    }
    json.dump(spent, sys.stdout)


if __name__ == "__main__":
    main()

"""One regular expression for many words."""

import re
from itertools import groupby


def longest_of(words: list[str]) -> str:
    """Return the regular expression of the longest of these words (sorted, none empty), as the
    backend takes the leftmost match and the longest of those.

    Common beginnings are factored out: a plain alternation of a thousand tokens tries each of
    them wherever one could begin, for seconds on 400 KB of `<`.
    """
    ways = []
    for _, group in groupby(words, key=lambda word: word[0]):
        alike = list(group)
        ends = enumerate(zip(alike[0], alike[-1], strict=False))
        size = next((at for at, (one, other) in ends if one != other), len(alike[0]))
        shared = alike[0][:size]
        rest = [word[len(shared) :] for word in alike]
        way = re.escape(shared)
        if len(rest) > 1:
            longer = longest_of([word for word in rest if word])
            way += f"(?:{longer})" + ("?" if rest[0] == "" else "")
        ways.append(way)
    return "|".join(ways)

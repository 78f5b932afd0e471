"""Unicode that tokenizers have been seen to disagree on, the same texts every time.

Invariants:
- Everything is spelled by code point: no editor, normalizer or font can change the corpus.
- Python's Unicode tables, which differ from version to version, decide nothing here.
"""

import json
import random
from pathlib import Path

# What looks alike: composed and decomposed, in and out of canonical order, compatible.
NORMAL_FORMS = (
    "\u00e9", "e\u0301", "\u212b", "\u00c5", "A\u030a", "\ufb01", "fi", "\u1ec7", "e\u0323\u0302",
    "e\u0302\u0323", "\u1e69", "s\u0323\u0307", "s\u0307\u0323", "\uac01", "\u1100\u1161\u11a8",
    "\u0958", "\u0915\u093c", "\u2126", "\u03a9", "\u00bd", "\uff11", "\u2460", "\ufdfa",
    "\U0001d518", "\u0344", "\u0308\u0301", "\u2000", "\u2002",
)  # fmt: skip
JOINED = (
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\u200d", "a\u200db", "\u200c",
    "\U0001f469\u200d", "\u200d\U0001f469", "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\u0915\u094d\u200d\u0937",
    "\U0001f468\U0001f3fd\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", "\U0001f1e9", "1\ufe0f\u20e3",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\U000e0041",
    "\u200d" * 300, "\U0001f469\u200d" * 200,
)  # fmt: skip
DIRECTED = (
    "\u200f", "\u200e", "abc\u202edef\u202cghi", "\u2066a\u2067b\u2068c\u2069", "\u202a\u202b",
    "\u0645\u0631\u062d\u0628\u0627 a \u05e9\u05dc\u05d5\u05dd", "\u061c", "\u0640" * 50,
    "\u0644\u0627\u064e\u0651", "\u202e<|im_end|>\u202c",
)  # fmt: skip
VARIANTS = (
    "\u2764\ufe0f", "\u2764\ufe0e", "\u2764", "\ufe0f", "\ufe0f\ufe0e\ufe0f", "\u845b\U000e0100",
    "\u845b", "\u180b", "a\ufe00", "\U000e01ef" * 40,
)  # fmt: skip
FLOODS = (
    "a" + "\u0301" * 2000, "\u0301" * 50, "o" + "\u0323\u0307" * 500, "\u0e33" * 100,
    "".join("z" + "".join(chr(0x300 + (7 * at + n) % 112) for n in range(30)) for at in range(20)),
    "\u20dd" * 64, "x\u0489" * 100, "\u0f71\u0f72\u0f74" * 60,
)  # fmt: skip
UNASSIGNED = (
    "\u0378", "\ufdd0", "\ufffe", "\uffff", "\U0001fffe", "\U0010ffff", "\U000e0fff", "\U0003abcd",
    "\ue000", "\uf8ff", "\U000f0000", "\ufffd", "\u2fe0\u0378a", "\u0080\u009f",
)  # fmt: skip
SPACED = (
    "\u00a0", "\u1680", "\u180e", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff",
    "\ufeffa", "a\ufeff", "\u200b", "\u2060", "\u0085", "\x0b\x0c\x1c\x1d\x1e\x1f", "\x00",
    "a\x00b", "\x7f", " \u00a0 \u3000 ", "\n\u2028\r\n\u2029\n", "\u00ad", "\u2062",
    "\ufff9a\ufffab\ufffb",
)  # fmt: skip
CASED = ("\u00df", "\u1e9e", "\u0130", "\u0131", "\u017f", "\u212a", "\u01c5", "\u0149", "\u03c2")
# Of a special token these are not it, and the tokenizer alone says what they are.
_DISGUISED = (
    "{0}", "{0}{0}", " {0}\n", "x{0}x", "{1}\u200d{2}", "{1}\ufe0f{2}", "{1}\u0301{2}", "{0}\u0301",
    "\u202e{0}", "{1}", "{2}", "{1}{0}{2}", "{0}\ufeff", "\u0301{0}",
)  # fmt: skip
# JSON spellings of what is no text: half a pair alone, first, last, in the wrong order.
LONE_SURROGATES = (
    r'"\ud800"', r'"\udfff"', r'"a\ud83d"', r'"\ude00b"', r'"\ude00\ud83d"', r'"\ud83d\u0041"',
    r'"\ud83d\ud83d\ude00"', r'"\uD800\uDBFF"', r'"<|im_start|>\udc00"',
)  # fmt: skip


def wide(text: str) -> str:
    """In full-width forms, which compatibility normalization turns back."""
    return "".join(chr(ord(one) + 0xFEE0) if "!" <= one <= "~" else one for one in text)


def texts(folder: Path) -> list[str]:
    """The corpus for the tokenizer in this folder; a few of its special tokens are played with."""
    file = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = [token["content"] for token in file["added_tokens"]]
    found = [
        *NORMAL_FORMS, *JOINED, *DIRECTED, *VARIANTS, *FLOODS, *UNASSIGNED, *SPACED, *CASED,
    ]  # fmt: skip
    for token in special[:4]:
        half = len(token) // 2
        found += [one.format(token, token[:half], token[half:]) for one in _DISGUISED]
        found.append(wide(token))
    pieces = [one for one in found if len(one) < 60]
    draw = random.Random("adversarial")
    for _ in range(100):
        found.append("".join(draw.choice(pieces) for _ in range(draw.randint(2, 12))))
    return found

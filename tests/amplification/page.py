"""docs/amplification.md, out of what the search found."""

from tests.amplification.channels import CHANNELS
from tests.amplification.worst import Worst, shortened
from tests.paths import ROOT

PAGE = ROOT / "docs" / "amplification.md"
_HEAD = """\
# Amplification

What the bytes of one peer can cost all others. Whatever lets a peer cause 100 times the work of
what it sends is a fault here, as it is for Envoy, and so is work that holds a loop for 50 ms. For
each way by which bytes come in, a seeded search looks for the input that takes most CPU for its
bytes, the one that holds the loop longest in a turn, and the one that takes most memory:

    make amplification

Every input goes through the product's own entry: sockets of a gateway and of an admin port, probes,
the account of KV events. CPU is that of the whole process, its threads
included, without the peers'; *x plain* is for that of one plain chat of as many bytes, with a text
that was not seen before. The turn is the longest of the loop, in CPU. Memory is what Python code
allocates, at most and when the request is over, for each byte sent.

`tests/amplification/test_amplification.py` replays these inputs and holds the bounds: 100 times a
plain chat, 50 ms, and 100 bytes held or kept for each that was sent. A request costs
some 0.3 ms whatever it brings, so the unit is one: how many somebody may send is what limits are
for ([settings](settings.md)).

The worst found, of each channel by CPU, by turn and by memory:

| from | channel | bytes | x plain | ns/byte | turn, ms | held, bytes/byte | kept | input |
|---|---|---|---|---|---|---|---|---|
"""


def _row(one: Worst) -> str:
    sent = one.sent_bytes
    code = shortened(one.shape).replace("|", "\\|").replace("`", "'")
    return (
        f"| {CHANNELS[one.channel].by} | {one.channel}, {one.aim} | {sent:,} | {one.ratio:.2f}"
        f" | {one.cpu_s / sent * 1e9:,.0f} | {one.turn_s * 1e3:.1f} | {one.peak_bytes / sent:.1f}"
        f" | {one.kept_bytes / sent:.2f} | `{code}` |\n"
    )


def text(worst: list[Worst]) -> str:
    """The page."""
    return _HEAD + "".join(map(_row, worst))


def write(worst: list[Worst]) -> None:
    """Replaces it."""
    PAGE.write_text(text(worst), encoding="utf-8")

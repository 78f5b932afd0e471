"""The runbook knows each answer by which the gateway says that it cannot serve."""

import re

from tests.paths import ROOT
from tokenlane.admission.queue import overloaded
from tokenlane.gateway import refusals
from tokenlane.http.acceptor import too_many_clients
from tokenlane.http.pool import out_of_descriptors
from tokenlane.http.request_body import out_of_memory
from tokenlane.protocols.context_window import uncounted
from tokenlane.protocols.dialects import GATEWAY_STOPPED
from tokenlane.routing.candidates import Eligible, Nobody
from tokenlane.routing.retry import Ending, Step

RUNBOOK = ROOT / "docs" / "runbook.md"


def test_every_code_of_a_503_has_a_row() -> None:
    refused = [
        *(refusals.nobody(Eligible((), nobody=why)) for why in Nobody),
        overloaded(1, own=False),
        uncounted(),
        out_of_memory(),
        too_many_clients(),
        out_of_descriptors(),
        GATEWAY_STOPPED,
        refusals.upstream(Step(Ending.ERROR, 503)),
    ]
    codes = {error.code for error in refused if error.status == 503}
    text = RUNBOOK.read_text(encoding="utf-8").split("## Requests are answered 503")[1]
    rows = set(re.findall(r"^\| `([a-z_]+)` \|", text.split("\n## ")[0], re.MULTILINE))
    assert rows == codes | {"not_ready"}  # which is /health's

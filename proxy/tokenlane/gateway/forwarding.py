"""Whether replicas get a prompt's ids beside its text, and why not. Pure.

Invariants:
- Ids go only to replicas that have proven them, in requests that real vLLM answers by them as by
  the text (`make test-vllm`). Everything else goes as the client wrote it.
- `reason` is a metric label: the forms below are all that there are.
"""

from typing import Final, NamedTuple

from tokenlane.fleet_state import IdKind
from tokenlane.gateway.id_trust import Claim
from tokenlane.prompt import Prompt
from tokenlane.protocols.bodies import ChatBody, CompletionBody, Prompted

_UNUSED_TOOLS: Final[int] = IdKind.UNUSED_TOOLS.value


class Form(NamedTuple):
    """What a replica gets of a prompt. sent: ids or text."""

    sent: str
    reason: str


PROVEN: Final = Form("ids", "proven")
CLIENT: Final = Form("ids", "client")
OFF: Final = Form("text", "off")
NO_IDS: Final = Form("text", "no-ids")
UNPROVEN: Final = Form("text", "unproven")
DIALECT: Final = Form("text", "dialect")
FIELDS: Final = Form("text", "fields")
LONG: Final = Form("text", "long")
SAMPLE: Final = Form("text", "sample")
DATE: Final = Form("text", "date")
ASKED: Final = Form("text", "asked")


def may(request: Prompted, prompt: Prompt | None, claim: Claim, mode: str) -> Form:
    """Return what replicas that have proven its ids get of such a request. mode: the setting."""
    if not claim.kinds:
        return CLIENT
    if prompt is None:
        return NO_IDS
    chat = type(request) is not CompletionBody
    if mode == "off" or (chat and mode != "all"):
        return OFF
    if chat and type(request) is not ChatBody:
        return DIALECT
    if not claim.proven:
        return UNPROVEN
    # `/tokenize` cannot be told of tools that may not be called, and vLLM refuses an empty list of
    # ids where it answers an empty text.
    if claim.kinds & _UNUSED_TOOLS or not prompt.tokens:
        return FIELDS
    # Ids made before midnight may reach the replica after it.
    return DATE if chat and claim.dated else PROVEN

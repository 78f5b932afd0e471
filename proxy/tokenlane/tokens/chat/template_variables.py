"""What a chat template sees beside the messages, as vLLM 0.32 sets it.

Invariants:
- A variable that the template does not use is left out: vLLM filters them the same way.
- What vLLM would refuse, or transformers would take for itself, raises Unrenderable.
"""

from collections.abc import Container, Mapping
from typing import Any, Final

from tokenlane.errors import Unrenderable
from tokenlane.protocols import prompt_fields
from tokenlane.protocols.bodies import ChatFields

# No set: a request may say an effort that has no hash.
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# Request-level values that win over chat_template_kwargs of the same name.
OVERRULED: Final = frozenset(("add_generation_prompt", "continue_final_message"))
# Names in chat_template_kwargs that steer transformers itself, or that vLLM refuses.
STEERING: Final = frozenset(
    "model_config tokenizer conversation conversations messages tools chat_template tokenize "
    "padding truncation max_length return_tensors return_dict return_assistant_tokens_mask "
    "tokenizer_kwargs self compiled_template".split()
)


def template_variables(
    request: ChatFields,
    used: Container[str],
    tools: list[dict[str, Any]] | None,
    specials: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the special tokens, then what the request sets. used: the template's variables."""
    given = prompt_fields.value(request.chat_template_kwargs)
    given = {} if given is None else given
    if not isinstance(given, dict) or not STEERING.isdisjoint(given):
        raise Unrenderable("template-kwargs")
    documents = prompt_fields.documents(request.documents)
    effort = prompt_fields.value(request.reasoning_effort)
    if effort is not None and effort not in EFFORTS:
        raise Unrenderable("field-shape")
    asked = {name: value for name, value in given.items() if name not in OVERRULED}
    if effort is not None:
        asked.setdefault("enable_thinking", effort != "none")
        asked["reasoning_effort"] = effort
    if documents is not None:
        asked["documents"] = documents
    elif not prompt_fields.are_objects(asked.get("documents")):
        raise Unrenderable("template-kwargs")
    # vLLM takes None and "auto" for "not given", whatever the variable means by them.
    known = {
        name: value
        for name, value in asked.items()
        if value is not None and value != "auto" and (name in used or name == "documents")
    }
    return {**specials, "tools": tools, "documents": None, **known}

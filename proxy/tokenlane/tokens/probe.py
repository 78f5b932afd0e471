"""Whether the fast engines equal the reference ones: tried at load, cached on disk.

Invariants:
- A result is keyed by everything it depends on: the tokenizer or template, the versions of the
  engines and of Python, the corpus. So it never goes stale.
- A result that cannot be read or written is found again: a broken disk is no error.
- A part that fails its probe, or cannot be tried, stays with the reference and says why.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import xxhash
from jinja2 import nodes

from tokenlane.errors import RequestError, Unrenderable
from tokenlane.tokens import encoder_threads, probe_corpus
from tokenlane.tokens.chat import conversation
from tokenlane.tokens.chat.minijinja_template import FastTemplate
from tokenlane.tokens.chat.template import Template, environment
from tokenlane.tokens.encode.encoder import EncodeEngine, Encoder
from tokenlane.tokens.encode.fastokens_encoder import FastEncoder
from tokenlane.tokens.engines import Refused, versions

# With fewer texts than this an engine is not worth using.
_TAKEN_SHARE: Final = 0.9


class Findings:
    """Results of probes, in a folder of the user's cache."""

    def __init__(self, folder: Path | None = None) -> None:
        """folder: by default `tokenlane` where XDG_CACHE_HOME says."""
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        try:
            self._folder = folder or Path(os.path.expandvars(base)).expanduser() / "tokenlane"
        except RuntimeError:  # a user without a home: nothing is kept
            self._folder = Path(os.devnull)
        self._around = f"{versions()} python={sys.version} corpus={probe_corpus.VERSION}"

    def get(self, kind: str, about: str, find: Callable[[], str]) -> str:
        """Return the result of `find`, cached if possible: how the engine differs for `about`, ""
        if it does not."""
        digest = xxhash.xxh3_128_hexdigest(f"{self._around}\n{about}".encode(errors="replace"))
        path = self._folder / f"{kind}-{digest}.json"
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            return str(json.loads(path.read_text(encoding="utf-8"))["why"])
        why = find()
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            # A concurrent reader sees all of it, or nothing.
            handle, made = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"why": why}, file)
            Path(made).replace(path)
        return why


def fast_encoder(encoder: Encoder, findings: Findings) -> tuple[EncodeEngine | None, str, str]:
    """Return the fast engine of a tokenizer and its name; or None, "tokenizers", and why it cannot
    do it."""
    if encoder.splits_specials:
        # The description that engines are built from leaves this out, so results do too.
        return None, "tokenizers", "it reads special tokens as text"
    about = encoder.to_json()
    try:
        fast = FastEncoder(about, encoder_threads.remember)
    except Refused as error:
        return None, "tokenizers", str(error)
    why = findings.get("encoder", about, lambda: _encoder_differs(encoder, fast))
    return (None, "tokenizers", why) if why else (fast, "fastokens", "")


def fast_template(
    template: Template, specials: dict[str, str], findings: Findings
) -> tuple[FastTemplate | None, str]:
    """Return the fast engine of a chat template; or None, and why. specials: as templates see
    them."""
    reference = environment()
    try:
        fast = FastTemplate(template.source, reference)
    except Refused as error:
        return None, str(error)
    about = json.dumps([template.source, specials])
    why = findings.get("template", about, lambda: _template_differs(template, specials, fast))
    return (None, why) if why else (fast, "")


def _encoder_differs(encoder: Encoder, fast: EncodeEngine) -> str:
    texts = probe_corpus.texts(encoder.added)
    for special in (False, True):
        expected = [encoder.encode(text, add_special_tokens=special) for text in texts]
        one_by_one = [fast.encode([text], add_special_tokens=special) for text in texts]
        # Texts that it leaves to the library cannot differ.
        taken = [at for at, found in enumerate(one_by_one) if found is not None]
        if len(taken) < len(texts) * _TAKEN_SHARE:
            return f"it leaves {len(texts) - len(taken)} of {len(texts)} texts to the library"
        together = fast.encode([texts[at] for at in taken], add_special_tokens=special) or []
        for at, again in zip_longest(taken, together):
            if one_by_one[at] != [expected[at]] or again != expected[at]:
                return f"other ids for text {at} of the corpus, {texts[at][:40]!a}"
    return ""


def _template_differs(template: Template, specials: dict[str, str], fast: FastTemplate) -> str:
    tree = environment().parse(template.source)
    words = sorted(
        {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    )
    keys = {node.attr for node in tree.find_all(nodes.Getattr)}
    keys |= {word for word in words if word.isidentifier()}
    own = {*specials, "messages", "tools", "documents", "add_generation_prompt"}
    functions = {"raise_exception", "strftime_now"}
    variables = sorted(template.variables - own - functions)
    rendered = given_up = 0
    for at, chat in enumerate(probe_corpus.chats(words, variables, sorted(keys))):
        try:
            messages, given = _inputs(template, specials, chat)
        except (RequestError, Unrenderable):
            continue
        expected = _outcome(template, None, messages, given, chat)
        if _outcome(template, fast, messages, given, chat) != expected:
            return f"another text for conversation {at} of the corpus"
        if isinstance(expected, str):
            rendered += 1
            given |= {"add_generation_prompt": chat.add_generation_prompt}
            given_up += fast.render(messages, given) is None
    if given_up * 2 >= rendered:
        return f"gives up on {given_up} of {rendered} conversations"
    return ""


def _inputs(
    template: Template, specials: dict[str, str], chat: probe_corpus.Chat
) -> tuple[list[conversation.Message], dict[str, Any]]:
    messages = conversation.conversation(chat.messages, template.content_format)
    if not template.knows_developer:
        messages = conversation.developer_as_system(messages)
    tools = conversation.tool_list(chat.tools)
    return messages, {
        **specials, "tools": tools, "documents": chat.documents, **chat.variables,
    }  # fmt: skip


def _outcome(
    template: Template,
    fast: FastTemplate | None,
    messages: list[conversation.Message],
    given: dict[str, Any],
    chat: probe_corpus.Chat,
) -> str | tuple[int, str]:
    """Return the text, or the refusal's status and message."""
    try:
        return template.render(
            messages,
            given,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            fast=fast,
        )
    except RequestError as error:
        return error.status, error.message

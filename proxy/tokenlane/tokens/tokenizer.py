"""A model's tokenizer: the ids of its requests, exactly as vLLM 0.32 makes them.

Invariants:
- Loaded once, off the request path; afterwards nothing in it changes but what it remembers of
  requests' tools and options, so threads share it.
- Exact or silent: what is not known to equal vLLM's ids raises Unrenderable, and the request is
  routed without ids. See `tokenlane.tokens.folder` for what a folder's files do not decide.
- Per request: fields -> conversation -> text (`chat_text`) -> pieces -> ids. Each step can run
  alone, so that a caller with a budget can yield between them.
- `add_special_tokens` is false for chat, true for completions; truncation keeps the end.
"""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tokenlane.errors import ConfigError, RequestError, Unrenderable
from tokenlane.protocols import prompt_fields
from tokenlane.protocols.bodies import (
    ChatBody,
    ChatFields,
    CompletionFields,
    Conversation,
    MessagesFields,
    ResponsesFields,
)
from tokenlane.tokens import folder, probe
from tokenlane.tokens.caches.options import Options, OptionsCache
from tokenlane.tokens.caches.shapes import MakeResidual, Shape, ShapeCache, shape_of
from tokenlane.tokens.chat import anthropic_messages, conversation, harmony, openai_responses
from tokenlane.tokens.chat.anthropic_messages import Converted
from tokenlane.tokens.chat.minijinja_template import FastTemplate
from tokenlane.tokens.chat.residual import Residual, Unknown
from tokenlane.tokens.chat.runs import EarlierRun
from tokenlane.tokens.chat.template import Template
from tokenlane.tokens.chat.template_variables import template_variables
from tokenlane.tokens.completion_prompts import completion_prompts
from tokenlane.tokens.encode import line_cuts
from tokenlane.tokens.encode.encoder import Encoder
from tokenlane.tokens.engines import FastPaths
from tokenlane.tokens.keys import options_digest

log = logging.getLogger(__name__)


class Rendering(NamedTuple):
    """A prompt's text. shape, residual: what it was made of, or could have been, where known.
    counts: as a `Converted`'s."""

    text: str
    shape: Shape | None = None
    residual: Residual | None = None
    counts: Sequence[int] = ()


class Tokenizer:
    """Ids of one model's requests.

    max_model_tokens: context length as far as the folder says; the replica's own word beats it.
    specials: bos_token and so on, as templates see them. variables: names that chat templates read
    from outside. volatile: a chat's text holds the time, so that its ids must not be cached.
    harmony: chats are those of gpt-oss, which a replica's /tokenize renders otherwise than it does.
    doubts: why ids may differ from vLLM's nevertheless; empty for the well-trodden folders. fast:
    which engines do the work.
    """

    def __init__(self, model: str, read: folder.Folder) -> None:
        self.model = model
        self._least_effort = ""
        self.encoder = Encoder(read.backend)
        self.max_model_tokens = read.max_model_tokens
        self.doubts = read.doubts
        self.specials = read.specials
        self._own_renderer = read.own_renderer
        self._chats_elsewhere = (
            not read.harmony
            if read.own_renderer
            else not read.templates and read.processor_template is None
        )
        self._own_tokenizer = read.own_tokenizer
        self._templates = {name: Template(text) for name, text in read.templates.items()}
        self._processor_template = (
            None if read.processor_template is None else Template(read.processor_template)
        )
        made = [*self._templates.values(), self._processor_template]
        added = self.encoder.added
        self.harmony = read.harmony and all(token.startswith(harmony.SPECIAL) for token in added)
        self.volatile = self.harmony or any(one is not None and one.volatile for one in made)
        self.variables = frozenset().union(*(one.variables for one in made if one is not None))
        literals = [text for template in made if template for text in template.literals]
        self.encoder.read_spec(line_cuts.marks(literals, self.encoder.added))
        self.fast = FastPaths()
        self._fast_templates: dict[Template, FastTemplate] = {}
        self._options = OptionsCache()

    @classmethod
    def load(
        cls, model: str, path: Path, *, cache_dir: Path | None = None, fast: bool = True
    ) -> "Tokenizer":
        """Read a model's folder. Raise ConfigError, one sentence that names the model.

        fast: with faster engines where a probe shows them equal; what it finds is kept in
        cache_dir, by default the user's cache.
        """
        try:
            made = cls(model, folder.read(path, (model,)))
        except ConfigError as error:
            raise ConfigError(f"tokenizer of {model}: {error}") from None
        if fast:
            made._hasten(probe.Findings(cache_dir))
        return made

    def _hasten(self, findings: probe.Findings) -> None:
        why = {}
        encoder, engine, why["encoder"] = probe.fast_encoder(self.encoder, findings)
        if encoder is not None:
            self.encoder.use(encoder)
        templates = {f"template {name}": made for name, made in self._templates.items()}
        if self._processor_template is not None:
            templates["template of the processor"] = self._processor_template
        if self.harmony:
            templates = {}
        elif self._own_renderer:
            why["template"], templates = "vLLM renders with code of its own", {}
        elif not templates:
            why["template"] = "there is none"
        for part, template in templates.items():
            made, why[part] = probe.fast_template(template, self.specials, findings)
            if made is not None:
                self._fast_templates[template] = made
        why = {part: reason for part, reason in why.items() if reason}
        self.fast = FastPaths(
            encoder=engine,
            template=(
                "replica"
                if self._chats_elsewhere
                else "harmony"
                if self.harmony
                else "jinja2"
                if why.keys() - {"encoder"}
                else "minijinja"
            ),
            why=why,
        )
        log.info("tokenizer of %s: %s and %s", self.model, self.fast.encoder, self.fast.template)
        for part, reason in why.items():
            log.info("tokenizer of %s: no fast path for its %s: %s", self.model, part, reason)

    def __repr__(self) -> str:
        return f"<Tokenizer {self.model} {self.encoder!r} templates={sorted(self._templates)}>"

    def made_elsewhere(self, request: Conversation | CompletionFields) -> bool:
        """Return whether these files do not say how vLLM makes this request's ids, and its
        `/tokenize` does: code of its own, or a template that is not in the folder."""
        if isinstance(request, CompletionFields):
            return self._own_tokenizer
        return self._chats_elsewhere

    def chat_text(self, asked: Conversation, shapes: ShapeCache | None = None) -> str:
        """Return the rendered prompt; see `rendering`."""
        return self.rendering(asked, shapes).text

    def rendering(
        self,
        asked: Conversation,
        shapes: ShapeCache | None = None,
        *,
        hasty: bool = False,
        continues: bool = False,
    ) -> Rendering:
        """Return the rendered prompt. shapes: what is known of others' renderings, and learns from
        this one unless that takes long and is `hasty`. continues: others may go on from it. Raise
        RequestError(400) as vLLM would, or Unrenderable."""
        if self.harmony and isinstance(asked, ChatFields):
            prompt_fields.refuse_overrides(asked)
            return Rendering(harmony.text(asked))
        if self._own_renderer:
            raise Unrenderable("own-renderer")
        given, counts = self.messages_of(asked)
        shape = None if shapes is None else shape_of(options_digest(asked), given)
        if shapes is None or shape is None:
            return Rendering(self._rendered(asked, given, None)[0])
        residual = shapes.residual(shape)
        if residual is not None:
            return Rendering(residual.filled(shape.texts), shape, residual, counts)
        text, make = self._rendered(asked, given, shape.name[0])
        if make is not None:
            residual = shapes.learn(shape, text, make, hasty=hasty, at_once=continues)
        return Rendering(text, shape, residual, counts)

    def _rendered(
        self, request: Conversation, given: Any, digest: bytes | None
    ) -> tuple[str, MakeResidual | None]:
        """Return the text of these messages, and what makes the residual of it, where there can be
        one. digest: as `_options_of`'s."""
        template, variables = self._options_of(request, digest)
        turns = conversation.conversation(given, template.content_format)
        names_first = isinstance(request, ResponsesFields)
        if names_first:
            turns = openai_responses.names_first(turns)
        if not template.knows_developer and any(turn["role"] == "developer" for turn in turns):
            turns = conversation.developer_as_system(turns)
        begun = prompt_fields.flag(request.add_generation_prompt, True)
        text = template.render(
            turns,
            variables,
            add_generation_prompt=begun,
            continue_final_message=prompt_fields.flag(request.continue_final_message, False),
            fast=self._fast_templates.get(template),
        )
        if template.volatile:
            return text, None
        seen = {**variables, "add_generation_prompt": begun}
        return text, partial(template.residual, variables=seen, names_first=names_first)

    def residual(
        self,
        request: Conversation,
        digest: bytes,
        forms: tuple[str, ...],
        texts: list[str],
        known: EarlierRun,
    ) -> Residual:
        """Return how a conversation renders that goes on from a known one. request: without its
        messages, whose forms are given. digest: of its other fields. texts: of those behind the
        known ones. Raise Unknown, and what `rendering` does."""
        if prompt_fields.flag(request.continue_final_message, False):
            raise Unknown("a message that is continued")
        template, variables = self._options_of(request, digest)
        begun = prompt_fields.flag(request.add_generation_prompt, True)
        seen = {**variables, "add_generation_prompt": begun}
        names_first = isinstance(request, ResponsesFields)
        return template.residual(forms, texts, seen, known, names_first=names_first)

    def _options_of(self, asked: Conversation, digest: bytes | None) -> Options:
        """Return the template of a request, and what it sees beside the messages. digest: of all
        fields but those; None: not made."""
        known = None if digest is None else self._options.get(digest)
        if known is not None:
            return known
        request = asked if isinstance(asked, ChatFields) else self.fields_of(asked)
        prompt_fields.refuse_overrides(request)
        converted = request is not asked
        tools = conversation.tool_list(prompt_fields.value(request.tools), may_be_empty=converted)
        template = self._template(with_tools=tools is not None)
        made = template, template_variables(request, template.variables, tools, self.specials)
        if digest is not None:
            self._options.put(digest, request, made)
        return made

    def messages_of(self, request: Conversation) -> Converted:
        """Return a request's messages as those of a chat. Raise Unrenderable."""
        if type(request) is ChatBody or isinstance(request, ChatFields):  # the usual one first
            return prompt_fields.decoded(request.messages), []
        if isinstance(request, ResponsesFields):
            return openai_responses.messages_of(request)
        templates = {self._template(with_tools=with_tools) for with_tools in (False, True)}
        system_first = any(template.system_first for template in templates)
        return anthropic_messages.messages_of(request, system_first=system_first)

    def fields_of(self, request: MessagesFields | ResponsesFields) -> ChatFields:
        """Return the rest of the chat that it makes of that one. Raise Unrenderable."""
        if isinstance(request, ResponsesFields):
            return openai_responses.fields_of(request)
        return anthropic_messages.fields_of(request, self._effort_of_none)

    def _effort_of_none(self) -> str:
        """Return what vLLM takes for thinking switched off: the least effort where the template
        refuses `none`, or takes it for one of the others."""
        if self._least_effort:
            return self._least_effort

        def shown(effort: str) -> str | None:
            hi = anthropic_messages.encoded([{"role": "user", "content": "Hi"}])
            probe = ChatFields(messages=hi, reasoning_effort=anthropic_messages.encoded(effort))
            try:
                return self.chat_text(probe)
            except (RequestError, Unrenderable):
                return None

        none = shown("none")
        same = none is None or any(shown(effort) == none for effort in anthropic_messages.EFFORTS)
        self._least_effort = anthropic_messages.EFFORTS[0] if same else "none"
        return self._least_effort

    def chat_ids(self, request: Conversation) -> bytes:
        """Return packed ids of a chat request: `chat_text`, encoded, truncated."""
        special = prompt_fields.flag(request.add_special_tokens, False)
        cut = prompt_fields.truncation(request.truncate_prompt_tokens, request.truncation_side)
        return self._truncated(self.chat_text(request), special, cut)

    def _template(self, *, with_tools: bool) -> Template:
        if not with_tools and self._processor_template is not None:
            return self._processor_template
        found = self._templates.get("tool_use") if with_tools else None
        found = found or self._templates.get("default")
        if found is None:
            raise Unrenderable("no-chat-template")
        return found

    def prompts(self, request: CompletionFields) -> tuple[str | bytes, ...]:
        """As `given`, text only where it can be encoded here. Raise Unrenderable."""
        prompts = completion_prompts(request)
        if self._own_tokenizer and any(isinstance(prompt, str) for prompt in prompts):
            raise Unrenderable("own-renderer")
        return prompts

    def completion_ids(self, request: CompletionFields) -> tuple[bytes, ...]:
        """Return packed ids of each prompt of a completion request."""
        special = prompt_fields.flag(request.add_special_tokens, True)
        cut = prompt_fields.truncation(request.truncate_prompt_tokens, request.truncation_side)
        return tuple(
            self._truncated(prompt, special, cut) if isinstance(prompt, str) else _kept(prompt, cut)
            for prompt in self.prompts(request)
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> bytes:
        """Return packed little-endian uint32 ids of a whole text."""
        return self.encoder.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: bytes) -> str:
        """Return text of packed ids, special tokens included."""
        return self.encoder.decode(ids)

    def _truncated(self, text: str, special: bool, cut: tuple[int, str | None] | None) -> bytes:
        if cut is None or cut[1] is not None or not special:
            return _kept(self.encoder.encode_apart(text, add_special_tokens=special), cut)
        # Without a side, the tokenizer itself truncates, and leaves room for what it adds.
        affixes = self.encoder.affixes
        if affixes is None:
            raise Unrenderable("truncation")
        before, after = affixes
        room = cut[0] - (len(before) + len(after)) // 4
        if room < 1:
            raise Unrenderable("truncation")
        body = _kept(self.encoder.encode_apart(text, add_special_tokens=False), (room, "left"))
        return before + body + after


def _kept(ids: bytes, cut: tuple[int, str | None] | None) -> bytes:
    if cut is None or len(ids) <= cut[0] * 4:
        return ids
    return ids[: cut[0] * 4] if cut[1] == "right" else ids[-cut[0] * 4 :]

"""A chat template, set up as transformers sets it up: the reference that others are held against.

Invariants:
- Sandboxed and immutable: a template cannot reach the process or change the messages.
- Whatever a template raises is the request's fault (400), as with vLLM. The message is passed on
  only where it is text of the template itself, never where it may hold bytes of the request. How
  deeply a template may call itself is this process's limit, and says nothing of the request.
- A template that asks for the time (`strftime_now`) is not a function of the request: `volatile`.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, TypeVar

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenlane.errors import ConfigError, RequestError, Unrenderable
from tokenlane.tokens.chat.content_formats import content_format
from tokenlane.tokens.chat.conversation import Message
from tokenlane.tokens.chat.forms import TEXTS, with_holes
from tokenlane.tokens.chat.holes import Asked
from tokenlane.tokens.chat.minijinja_template import FastTemplate
from tokenlane.tokens.chat.partial_evaluation import HoleEnvironment, PartialEvaluation
from tokenlane.tokens.chat.residual import Guard, Residual, guards_before
from tokenlane.tokens.chat.runs import EarlierRun
from tokenlane.tokens.chat.template_json import to_json

# Put behind the final message's text, looked up in the rendering, cut off with all after it.
# transformers' own mark: the template, and a message that quotes it, must see the same.
CONTINUE_MARK: Final = "CONTINUE_FINAL_MESSAGE_TAG "

_TEMPLATES_KEPT: Final = 64

Kind = TypeVar("Kind", bound=ImmutableSandboxedEnvironment)


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}`: marks what the assistant said; renders its body.

    A call block, so that names set inside stay inside.
    """

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block as a call of `_body`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    # Local time, as transformers: a template prints the date of the machine it runs on.
    return datetime.now().strftime(form)  # noqa: DTZ005 - see above


def environment() -> ImmutableSandboxedEnvironment:
    """Return Jinja as transformers configures it for chat templates."""
    return _environment(ImmutableSandboxedEnvironment)


def _environment(kind: type[Kind]) -> Kind:
    made = _bare_environment(kind)
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = _now
    return made


def _bare_environment(kind: type[Kind]) -> Kind:
    return kind(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])


class Template:
    """One compiled chat template. Rendering is safe from several threads.

    literals: all text that it holds. content_format: what message content must look like.
    variables: names it reads from outside. knows_developer: it mentions that role. volatile: it
    asks for the time.
    """

    def __init__(self, source: str) -> None:
        """Raises ConfigError if the template does not compile."""
        made = environment()
        try:
            tree = made.parse(source)
            self._compiled = made.from_string(source)
            # Without our globals: a request may overrule even those, by the same name.
            bare = _bare_environment(ImmutableSandboxedEnvironment).parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(bare))
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            raise ConfigError(
                f"the chat template does not compile (line {line}): {error.message}"
            ) from None
        self.source = source
        self.literals = frozenset(_literals(tree))
        self.content_format = content_format(tree)
        self.knows_developer = '"developer"' in source or "'developer'" in source
        self.volatile = "strftime_now" in self.variables

    @property
    def system_first(self) -> bool:
        """Whether it refuses a system message behind others, as vLLM finds out: with less than
        what a template is rendered with, so that it may refuse for other reasons too."""
        return _wants_system_first(self.source)

    def render(
        self,
        messages: list[Message],
        variables: dict[str, Any],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        fast: FastTemplate | None = None,
    ) -> str:
        """Return the prompt's text, by `fast` where it can. Raise RequestError(400) where the
        template refuses, Unrenderable where it calls itself too deeply."""
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                400,
                "continue_final_message and add_generation_prompt are not compatible: set "
                "add_generation_prompt to false to continue the final message.",
                param="continue_final_message",
            )
        given = {**variables, "add_generation_prompt": add_generation_prompt}
        if not continue_final_message:
            return self._render(messages, given, fast)
        marked, text = self._marked(messages)
        return self._cut(self._render(marked, given, fast), text)

    def residual(
        self,
        forms: tuple[str, ...],
        texts: list[str],
        variables: dict[str, Any],
        known: EarlierRun | None = None,
        *,
        names_first: bool = False,
    ) -> Residual:
        """Return what it makes of messages of these forms, whatever their texts; see
        `tokenlane.tokens.chat.partial_evaluation`. variables: without the messages. known: an
        earlier one, of messages whose texts are not given again. names_first: of calls. Raises
        Unknown."""
        starts = list(accumulate([TEXTS[name] for name in forms], initial=0))
        first = 0
        guards: tuple[Guard, ...] = ()
        if known is not None:
            first, guards = starts[known.messages], known.residual.guards
            guards = guards if known.whole else guards_before(guards, first)
        asked, made = Asked(texts, first, guards), dict[int, Message]()

        def message(at: int) -> Message:
            if at not in made:
                form, first_text = forms[at], starts[at]
                made[at] = with_holes(form, first_text, self.content_format, asked, names_first)
            return made[at]

        run = _partial_evaluation(self.source)
        return run.residual(message, len(forms), variables, asked, known)

    def _render(
        self, messages: list[Message], variables: dict[str, Any], fast: FastTemplate | None
    ) -> str:
        text = None if fast is None else fast.render(messages, variables)
        if text is not None:
            return text
        try:
            return self._compiled.render(messages=messages, **variables)
        except RecursionError:
            raise Unrenderable("json") from None
        except Exception as error:  # noqa: BLE001 - a template can raise anything, see the head
            raise RequestError(400, self._reason(error), param="messages") from None

    def _reason(self, error: Exception) -> str:
        if isinstance(error, jinja2.TemplateError):
            message = (error.message or "").strip()
            if message and message in self.source:
                return f"The chat template refused the request: {message}"
        return "The chat template refused the request."

    def _marked(self, messages: list[Message]) -> tuple[list[Message], str]:
        """Return the messages with the mark in the last one, and the text before the mark."""
        last = messages[-1]
        content = last["content"]
        if "content" not in self.source:
            raise _cannot_continue("the chat template reads no `content`")
        if isinstance(content, str):
            return [*messages[:-1], {**last, "content": content + CONTINUE_MARK}], content
        for at in range(len(content) - 1, -1, -1):
            if "text" in content[at]:
                text: str = content[at]["text"]
                part = {**content[at], "text": text + CONTINUE_MARK}
                parts = [*content[:at], part, *content[at + 1 :]]
                return [*messages[:-1], {**last, "content": parts}], text
        raise _cannot_continue("the final message has no text")

    def _cut(self, rendered: str, text: str) -> str:
        mark = CONTINUE_MARK.strip()
        if text.strip() not in rendered or mark not in rendered:
            raise _cannot_continue("the chat template changes the final message")
        at = rendered.rindex(mark)
        if rendered[at : at + len(CONTINUE_MARK)] == CONTINUE_MARK:
            return rendered[:at]
        # The template stripped the message, and the mark's space with it.
        return rendered[:at].rstrip()


# A cached property of a compiled class is none: it is made each time.
@lru_cache(_TEMPLATES_KEPT)
def _wants_system_first(source: str) -> bool:
    bare = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    messages = [{"role": role, "content": "t"} for role in ("system", "user") * 2]
    try:
        bare.from_string(source).render(messages=messages, add_generation_prompt=False)
    except Exception:  # noqa: BLE001 - a template can raise anything, see the head
        return True
    return False


@lru_cache(_TEMPLATES_KEPT)
def _partial_evaluation(source: str) -> PartialEvaluation:
    return PartialEvaluation(source, _environment(HoleEnvironment))


def _literals(tree: nodes.Template) -> Iterator[str]:
    yield from (data.data for data in tree.find_all(nodes.TemplateData))
    yield from (const.value for const in tree.find_all(nodes.Const) if isinstance(const.value, str))


def _cannot_continue(why: str) -> RequestError:
    return RequestError(
        400, f"The final message cannot be continued: {why}.", param="continue_final_message"
    )

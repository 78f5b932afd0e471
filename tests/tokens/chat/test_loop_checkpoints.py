"""A run that goes on from an earlier one prints what a run from the start does."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import many
from tests.tokens.chat.test_partial_evaluation import FOLLOWED, TEMPLATES
from tokenlane.tokens.chat.forms import FORMS, TEXTS
from tokenlane.tokens.chat.residual import Residual, Unknown, base_of
from tokenlane.tokens.chat.runs import EarlierRun
from tokenlane.tokens.chat.template import Template

BODY = "<{{ m.role }}>{{ m.content }}"


def looped(body: str = BODY, before: str = "", over: str = "messages") -> str:
    return f"{before}{{% for m in {over} %}}{body}{{% endfor %}}{{{{ messages | length }}}}."


def back(body: str) -> str:
    """As Qwen3's: what is found from the last message on."""
    return (
        "{% set ns = namespace(open=true, at=messages | length - 1) %}"
        "{% for m in messages[::-1] %}{% set index = (messages | length - 1) - loop.index0 %}"
        + body
        + "{% endfor %}"
        + looped("{% if loop.index0 > ns.at %}+{% endif %}" + BODY)
    )


ROLES = "{% set roles = messages | map(attribute='role') | list %}"
# A loop whose turns say something of messages that come later, or of what was set before.
AHEAD = {
    "length": looped("{{ loop.length }}" + BODY),
    "from the end": looped("{{ loop.revindex }}" + BODY),
    "count": looped("{{ messages | length }}" + BODY),
    "count, asked": looped("{{ '!' if loop.index == messages | length - 1 }}" + BODY),
    "the last one": looped("{{ messages[-1].role }}" + BODY),
    "all": looped("{% for o in messages %}{{ o.role }}{% endfor %}" + BODY),
    "the next but one": looped(
        "{{ (messages[loop.index0 + 2] | default({'role': '-'})).role }}" + BODY
    ),
    "a slice": looped("{% for o in messages[loop.index:] %}{{ o.role }}{% endfor %}" + BODY),
    "the rest": looped("{{ messages[loop.index:] | length }}" + BODY),
    "reversed": looped("{{ (messages | reverse | first).role }}" + BODY),
    "as JSON": looped("{{ messages | tojson }}" + BODY),
    "in": looped("{{ messages[0] in messages }}{{ {} in messages }}" + BODY),
    "some": looped("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}" + BODY),
    "set before": looped("{{ n }}" + BODY, "{% set n = messages | length %}"),
    "set before, in a namespace": looped(
        "{{ ns.n }}{% set ns.n = ns.n + 1 %}" + BODY,
        "{% set ns = namespace(n=messages | length) %}",
    ),
    "set before, in a macro": looped(
        "{{ f() }}" + BODY,
        "{% set n = messages | length %}{% macro g() %}{{ n }}{% endmacro %}"
        "{% macro f() %}{{ g() }}{% endmacro %}",
    ),
    "a namespace within": looped(
        "{% set x = d.ns %}{{ x.n }}{% set x.n = x.n + 1 %}" + BODY,
        "{% set d = {'ns': namespace(n=0)} %}",
    ),
    "a namespace within another": looped(
        "{% set x = o.ns %}{{ x.n }}{% set x.n = x.n + 1 %}" + BODY,
        "{% set o = namespace(ns=namespace(n=0)) %}",
    ),
    "an iterator": looped(
        "{{ roles | first }}" + BODY, "{% set roles = messages | map(attribute='role') %}"
    ),
    "a list": looped("{{ roles | length }}{{ roles[-1] }}" + BODY, ROLES),
    "a part of a call": looped(
        "{{ a }}" + BODY, "{% set a = (messages[0].tool_calls | default([{}]))[0].id %}"
    ),
    "one of two macros": looped(
        "{{ f() }}" + BODY,
        "{% if messages | length > 3 %}{% macro f() %}M{% endmacro %}"
        "{% else %}{% macro f() %}F{% endmacro %}{% endif %}",
    ),
    "a macro's default": looped(
        "{{ f() }}" + BODY,
        "{% set n = messages | length %}{% macro f(x=n) %}{{ x }}{% endmacro %}",
    ),
    "printed before": looped(before="{{ messages | length }}"),
    "last found": looped(
        "{{ '*' if loop.index0 > ns.at }}" + BODY,
        "{% set ns = namespace(at=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.at = loop.index0 %}{% endif %}{% endfor %}",
    ),
    "from one on": looped(over="messages[1:]"),
    "from two on": looped(over="messages[1:][1:]"),
    "but the last": looped(over="messages[:-1]"),
    "some kept": looped(over="(messages if messages[0].role == 'user' else messages[1:])"),
    "filtered": "{% for m in messages if m.role != 'system' %}" + BODY + "{% endfor %}",
    "from the last one": looped(over="messages[::-1]"),
    "back, first": back("{% if loop.first %}{% set ns.at = index %}{% endif %}"),
    "back, last": back("{% if loop.last %}{% set ns.at = index %}{% endif %}"),
    "back, counted": back("{% set ns.at = ns.at + 1 %}"),
    "back, its number": back("{% if m.role == 'user' %}{% set ns.at = loop.index0 %}{% endif %}"),
    "back, as another": back("{% if loop.index == 2 %}{% set ns.at = index %}{% endif %}"),
    "back, next": back("{% if loop.nextitem.role == 'user' %}{% set ns.at = 0 %}{% endif %}"),
    "back, by number": back(
        "{% if messages[index].role == 'user' %}{% set ns.at = 0 %}{% endif %}"
    ),
    "back, left": back("{% if m.role == 'user' %}{% set ns.at = 1 %}{% break %}{% endif %}"),
    "back, printed": back("{{ m.role }}"),
    "back, the number of all": back("{% set ns.at = messages | length %}"),
    "back, else": "{% for m in messages[::-1] %}{{ m.role }}{% else %}-{% endfor %}" + looped(),
    "never found": back("{% if m.role == 'nobody' %}{% set ns.at = index %}{% endif %}"),
    "numbers from the end": looped(
        "{% set n = messages | length %}{{ n - 1 }}{{ n + 1 > 2 }}{{ 1 - n }}{{ n * 2 }}{{ -n }}"
        "{{ n == 3 }}{{ 3 == n }}{{ n % 2 }}{{ n // 2 }}{{ n / 2 }}{{ n | tojson }}{{ n ~ '' }}"
        "{{ n - n }}{{ n is number }}{{ n is string }}{{ not n }}{{ range(n) | list | length }}"
        + BODY
    ),
}
# A loop whose turns say nothing of messages behind the next one.
ALONG = {
    "alone": looped(),
    "first and last": looped("{{ loop.first }}{{ loop.last }}{{ loop.index }}" + BODY),
    "neighbours": looped(
        "{{ loop.previtem.role if not loop.first }}{{ loop.nextitem.role if not loop.last }}" + BODY
    ),
    "neighbours by number": looped(
        "{% if loop.index0 %}{{ messages[loop.index0 - 1].role }}{% endif %}"
        "{{ messages[loop.index0 + 1].role if not loop.last }}" + BODY
    ),
    "counted": looped(
        "{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}{% endif %}{{ ns.n }}" + BODY,
        "{% set ns = namespace(n=0, text='') %}",
    ),
    "a text kept": looped(
        "{{ ns.text }}{% set ns.text = m.content %}" + BODY, "{% set ns = namespace(text='') %}"
    ),
    "a macro": looped(
        "{{ f(m) }}", "{% macro f(m) %}" + BODY + "{{ ns.n }}{% endmacro %}"
        "{% set ns = namespace(n=0) %}",
    ),
    "without its number": "{% for m in messages %}" + BODY + "{% endfor %}",
    "left": looped("{% if m.role == 'tool' %}{% break %}{% endif %}" + BODY),
    "passed over": looped("{% if m.role == 'tool' %}{% continue %}{% endif %}" + BODY),
    "in a branch": "{% if absent %}T{{ messages | length }}{% else %}" + looped() + "{% endif %}",
    "two": looped() + looped("{{ loop.index }}"),
    "set in it": looped("{% set x = m.content %}{{ x }}{{ y }}{% set y = 1 %}{{ y }}"),
    "found": back(
        "{% if ns.open and m.role == 'user' and not m.content.startswith('b') %}"
        "{% set ns.at = index %}{% set ns.open = false %}{% endif %}"
    ),
    "asked": looped("{{ '?' if m.content.startswith('a') }}{{ '!' if 'b' in m.content }}" + BODY),
}  # fmt: skip


def told(body: str = "{{ t | tojson }}", before: str = "", over: str = "tools") -> str:
    return looped(before=f"{before}{{% for t in {over} %}}{body}{{% endfor %}}")


# A loop over the tools, before that over the messages.
GIVEN = {
    "tools": told(),
    "tools, numbered": told("{{ loop.index }}/{{ loop.length }}{{ t.function.name }}"),
    "tools, the last one": told("{{ t.function.name }}{{ ', ' if not loop.last else '.' }}"),
    "tools, neighbours": told("{{ loop.previtem is defined }}{{ loop.nextitem is defined }}"),
    "tools, counted": told(
        "{% set ns.n = ns.n + 1 %}{{ ns.n }}", "{% set ns = namespace(n=0) %}"
    )
    + "{{ ns.n }}",
    "tools, behind the system's": told(before="{{ messages[0].content }}"),
    "tools, and a message": told("{{ messages[0].role }}"),
    "tools, and a message's text": told(
        "{{ 'a' in messages[0].content }}{{ messages[0].content }}"
    ),
    "tools, and another message": told("{{ (messages[2] | default({'role': '-'})).role }}"),
    "tools, and the last message": told("{{ messages[-1].role }}"),
    "tools, and how many messages": told("{{ messages | length }}"),
    "tools, and all messages": told("{% for m in messages %}{{ m.role }}{% endfor %}"),
    "tools, by a macro": told("{{ f(t) }}", "{% macro f(t) %}{{ t | tojson }}{% endmacro %}"),
    "tools, left": told("{{ loop.index }}{% break %}"),
    "tools, passed over": told("{% if loop.first %}{% continue %}{% endif %}{{ loop.index }}"),
    "tools, or others": told(over="(tools if messages | length > 3 else documents)"),
    "tools, or none": told(over="tools or []"),
    "tools, by a name": told(before="{% set all = tools %}", over="all"),
    "tools, twice": told(before="{% for t in tools %}{{ t.type }}{% endfor %}"),
    "tools, behind the messages": looped() + told(),
    "tools, in a branch": "{% if messages[0].role == 'system' %}" + told() + "{% endif %}" + told(),
}  # fmt: skip
ONCE = (
    "tools", "tools, numbered", "tools, the last one", "tools, neighbours", "tools, counted",
    "tools, behind the system's", "tools, and a message", "tools, and a message's text",
    "tools, by a macro", "tools, passed over", "tools, or none", "tools, by a name",
)  # fmt: skip
SOURCES = (
    TEMPLATES
    | AHEAD
    | ALONG
    | GIVEN
    | {f"followed {at}": source for at, source in enumerate(FOLLOWED)}
)
COMPILED = {name: Template(source) for name, source in SOURCES.items()}

SOME = ["system", "user", "assistant", "tool", "assistant, null, 1 called", "tool, answering"]
forms_lists = st.lists(st.sampled_from(sorted(FORMS)), min_size=1, max_size=7)
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {}}}
    for name in "fg"
]
VARIABLES: dict[str, Any] = {
    "add_generation_prompt": True, "bos_token": "<s>", "tools": TOOLS, "documents": TOOLS[:1],
}  # fmt: skip


def texts_for(forms: list[str]) -> list[str]:
    words = ("a", "b", "", " a", "{}", "text 0")
    return [words[at % len(words)] for at in range(sum([TEXTS[name] for name in forms]))]


def made(
    template: Template, forms: list[str], texts: list[str], known: EarlierRun | None = None
) -> Residual | None:
    try:
        return template.residual(tuple(forms), texts, VARIABLES, known)
    except Unknown:
        return None


@pytest.mark.parametrize("name", sorted(SOURCES))
@settings(max_examples=25, deadline=None)
@given(
    forms=forms_lists,
    more=st.lists(st.lists(st.sampled_from(sorted(FORMS)), max_size=3), min_size=1, max_size=3),
    lost=st.integers(0, 2),
)
def test_what_goes_on_prints_what_a_whole_run_does(
    name: str, forms: list[str], more: list[list[str]], lost: int
) -> None:
    """Also where the last messages are other ones."""
    template = COMPILED[name]
    residual = made(template, forms, texts_for(forms))
    for new in more:
        if residual is None:
            return
        before, kept = len(forms), max(0, len(forms) - lost)
        forms = forms[:kept] + new
        if not forms:
            return
        texts = texts_for(forms)
        first = sum([TEXTS[one] for one in forms[:kept]])
        residual = made(template, forms, texts[first:], EarlierRun(residual, kept, kept == before))
        whole = made(template, forms, texts)
        if residual is None:
            continue
        assert whole is not None
        assert residual.parts == whole.parts
        assert residual.fits(texts)
        asked = {(*guard[:3], number) for guard in residual.guards for number in guard.texts}
        # All that a whole run asks, and of known texts what was asked before.
        wanted = {(*guard[:3], number) for guard in whole.guards for number in guard.texts}
        assert wanted <= asked
        assert all(base_of(number) < first for *_, number in asked - wanted)


def turns_of(count: int) -> list[set[tuple[int, int]]]:
    """Where loops over so many messages leave checkpoints: forward ones, and one back."""
    return [{(count - 1, 0)}, {(count - 1, 0), (count, 0)}]


@pytest.mark.parametrize("name", sorted(ALONG))
def test_a_turn_is_run_once_more_and_no_other(name: str) -> None:
    template, forms = COMPILED[name], ["system", "user", "assistant", "user", "assistant"]
    before = made(template, forms, texts_for(forms))
    assert before is not None
    assert {(one.turn, one.first) for [one] in before.checkpoints.values()} in turns_of(5)
    more = [*forms, "user", "assistant"]
    after = made(template, more, texts_for(more)[5:], EarlierRun(before, 5, True))
    assert after is not None
    last = [(left[-1].turn, left[-1].first) for left in after.checkpoints.values()]
    assert set(last) in turns_of(7)


# Not of a loop behind another one, nor of one that does otherwise behind the last question.
@pytest.mark.parametrize("name", sorted(ALONG.keys() - {"found", "two"}))
def test_an_earlier_turn_will_do_where_the_last_messages_are_other_ones(name: str) -> None:
    """From the second such run on; no loop may be run from its start then."""
    template, forms = COMPILED[name], ["system", *["user", "assistant"] * 8]
    known = made(template, forms, texts_for(forms))
    for count in range(12):
        assert known is not None
        forms += ["assistant", "user"]
        first = len(forms) - 4
        run = EarlierRun(known, first, False, may_begin=count == 0)
        known = made(template, forms, texts_for(forms)[first:], run)
    assert known is not None
    whole = made(template, forms, texts_for(forms))
    assert whole is not None
    assert known.parts == whole.parts


@pytest.mark.parametrize("name", ONCE)
def test_tools_are_walked_through_once(name: str) -> None:
    template, forms = COMPILED[name], ["system", "user", "assistant"]
    before = made(template, forms, texts_for(forms))
    assert before is not None
    more = [*forms, "user"]
    after = made(template, more, texts_for(more)[3:], EarlierRun(before, 3, True))
    assert after is not None
    assert after.checkpoints[0] == before.checkpoints[0]
    assert after.parts == made(template, more, texts_for(more)).parts  # type: ignore[union-attr]  # it was made before


# What a template may be made of: values, in the words of a loop's body where `m` is its message.
VALUES = st.sampled_from(
    "m.role m.content messages|length messages[0].role messages[-1].role "
    "messages[loop.index0].role loop.index loop.index0 loop.first loop.last loop.length "
    "loop.revindex0 ns.n ns.t n t f() g(1) "
    "(messages|length)-loop.index0 (messages|length-1)-loop.index0 messages[1:]|length "
    "(loop.nextitem|default(m)).role (loop.previtem|default(m)).role m.content|trim "
    "(m.tool_calls|default([]))|length".split()
)
CONDITIONS = st.builds(
    "{} {} {}".format, VALUES, st.sampled_from(("==", "!=")), VALUES | st.sampled_from(("1", "'a'"))
) | st.sampled_from(
    "m.role=='user' m.role=='tool' loop.last loop.first ns.n>1 loop.index0>ns.n n>3 "
    "m.content".split()
)
STATEMENTS = (
    st.builds("{{{{ {} }}}}".format, VALUES)
    | st.builds("{{% set ns.n = {} %}}".format, VALUES)
    | st.builds("{{% set ns.t = {} %}}".format, VALUES)
    | st.builds("{{% set n = {} %}}".format, VALUES)
    | st.sampled_from(
        ("{% break %}", "{% continue %}", "{% set ns.n = ns.n + 1 %}", "<{{ ns.t }}>")
    )
)
BRANCHES = st.builds("{{% if {} %}}{}{{% endif %}}".format, CONDITIONS, STATEMENTS) | STATEMENTS
LOOPS = st.builds(
    "{{% for m in {} %}}{}{{% endfor %}}|".format,
    st.sampled_from(
        "messages messages messages[1:] messages[::-1] later back tools documents".split()
    ),
    st.lists(BRANCHES, min_size=1, max_size=4).map("".join),
)
BEFORE = (
    "{% set ns = namespace(n=0, t='') %}{% set n = 2 %}{% set later = messages[1:] %}"
    "{% set back = messages[::-1] %}{% macro f() %}{{ ns.n }}{{ n }}{% endmacro %}"
    "{% macro g(x) %}{{ x }}{{ messages[0].role }}{% endmacro %}"
)
FIRST = st.sampled_from(
    (
        "", "{% set n = messages | length %}", "{% set ns.n = messages | length - 1 %}",
        "{{ messages | length }}", "{% set n = (messages | last).role %}",
        "{% set later = messages if n else [] %}", "{% set t = namespace(x=messages[0].role).x %}",
    )
)  # fmt: skip


@settings(max_examples=many(125), deadline=None)
@given(
    first=FIRST,
    loops=st.lists(LOOPS, min_size=1, max_size=3).map("".join),
    forms=st.lists(st.sampled_from(SOME), min_size=1, max_size=6),
    more=st.lists(st.lists(st.sampled_from(SOME), max_size=3), min_size=1, max_size=2),
)
def test_no_template_tells_that_a_run_went_on(
    first: str, loops: str, forms: list[str], more: list[list[str]]
) -> None:
    template = Template(BEFORE + first + loops)
    residual = made(template, forms, texts_for(forms))
    for new in more:
        if residual is None:
            return
        kept, forms = len(forms), forms + new
        texts = texts_for(forms)
        at_hand = texts[sum([TEXTS[one] for one in forms[:kept]]) :]
        residual = made(template, forms, at_hand, EarlierRun(residual, kept, whole=True))
        whole = made(template, forms, texts)
        if residual is not None:
            assert whole is not None
            assert residual.parts == whole.parts

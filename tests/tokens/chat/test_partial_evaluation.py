"""A residual is its template's rendering for every conversation that its guards let through."""

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenlane.errors import RequestError
from tokenlane.tokens.chat.conversation import conversation
from tokenlane.tokens.chat.forms import forms_of, texts_of
from tokenlane.tokens.chat.holes import merged
from tokenlane.tokens.chat.residual import Residual, Unknown, base_of, made_of, text_at
from tokenlane.tokens.chat.template import Template

TOOLS = [{"type": "function", "function": {"name": "f", "description": "é <b>", "parameters": {}}}]

# Templates with the features of real ones.
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = """\
{% if not date is defined %}{% set date = '26 Jul 2024' %}{% endif %}
{% if messages[0]['role'] == 'system' %}
    {% set system = messages[0]['content'] | trim %}{% set messages = messages[1:] %}
{% else %}{% set system = '' %}{% endif %}
{{ '<|begin|><|header|>system<|end|>\n\nToday: ' + date + '\n' + system + '<|eot|>' }}
{% for message in messages %}
    {{- '<|header|>' ~ message.role ~ '<|end|>\n\n' ~ message.content | trim ~ '<|eot|>' }}
{% endfor %}
{{- '<|header|>assistant<|end|>\n\n' if add_generation_prompt }}"""
THINKING = """\
{%- if tools %}
    {{- '<|system|>\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- '<|end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|system|>\n' + messages[0].content + '<|end|>\n' }}
{%- endif %}
{%- set ns = namespace(open=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- set text = message.content %}
    {%- if ns.open and message.role == "user" and text is string
        and not (text.startswith('<answer>') and text.endswith('</answer>')) %}
        {%- set ns.open = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|' + message.role + '|>\n' + content + '<|end|>\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0] %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<|assistant|>\n<think>' + reasoning.strip('\n') + '</think>' }}
            {{- content.lstrip('\n') }}
        {%- else %}
            {{- '<|assistant|>\n' + content }}
        {%- endif %}
        {{- '<|end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|user|>' }}
        {%- endif %}
        {{- '\n<answer>\n' }}{{- content }}{{- '\n</answer>' }}
        {%- if loop.last or loop.nextitem.role != "tool" %}{{- '<|end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think></think>' }}
    {%- endif %}
{%- endif %}"""
MERGED = """\
{% set ns = namespace(system='') %}
{% for m in messages %}{% if m['role'] == 'system' %}
{% set ns.system = ns.system + '\n\n' + m['content'] if ns.system else m['content'] %}
{% endif %}{% endfor %}
<s>{{ ns.system }}
{%- for m in messages if m.role != 'system' %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns!') }}{% endif %}
{%- if m.role == 'user' %}{{ ' [INST] ' + m.content + ' [/INST]' }}
{%- elif m.content == '' %}{% continue %}
{%- else %}{{ ' ' + m.content.strip() + '</s>' }}{% endif %}
{%- else %}nobody{% endfor %}"""
PARTS = """\
{% for message in messages %}[{{ message.role }}]
{% if message.content is string %}{{ message.content }}
{% else %}{% for part in message.content %}
{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}
{% endfor %}"""
TEMPLATES = {
    "chatml": CHATML, "headers": HEADERS, "thinking": THINKING, "merged": MERGED, "parts": PARTS,
}  # fmt: skip
COMPILED = {name: Template(source) for name, source in TEMPLATES.items()}

ROLES = st.lists(st.sampled_from(("system", "user", "assistant", "user", "tool")), max_size=6)
PLAIN = st.sampled_from(("a", "b c", "Ünï", "{{ x }}"))
ODDITIES = (
    "", " ", "\n", " a", "a\n", "\x1c", "\ud800", "<answer>", "<answer>1</answer>", "</answer>",
    "</think>", "<think>r</think>\n\na", "r</think>", "</think>\n",
)  # fmt: skip
ODD = st.sampled_from(ODDITIES)
VARIABLES: tuple[dict[str, Any], ...] = (
    {},
    {"tools": TOOLS},
    {"tools": None, "enable_thinking": False},
    {"date": "x"},
    {"add_generation_prompt": False},
)
TEXTS = st.lists(PLAIN | ODD, min_size=6, max_size=6)


def messages_of(template: Template, roles: list[str], texts: list[str]) -> list[dict[str, Any]]:
    asked = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    assert forms_of(asked) == tuple(roles)
    assert texts_of(asked, tuple(roles)) == texts
    return conversation(asked, template.content_format)


def rendered(
    template: Template, roles: list[str], texts: list[str], variables: dict[str, Any]
) -> str | None:
    """The reference's text; None where it refuses."""
    given = {name: value for name, value in variables.items() if name != "add_generation_prompt"}
    try:
        return template.render(
            messages_of(template, roles, texts),
            given,
            add_generation_prompt=variables.get("add_generation_prompt", True),
            continue_final_message=False,
        )
    except RequestError:
        return None


def residual_of(
    template: Template, roles: list[str], texts: list[str], variables: dict[str, Any]
) -> Residual | None:
    try:
        return template.residual(tuple(roles), texts, {"add_generation_prompt": True, **variables})
    except Unknown:
        return None


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(sorted(TEMPLATES)),
    roles=ROLES.filter(bool),
    texts=TEXTS,
    others=st.lists(TEXTS, min_size=1, max_size=4),
    variables=st.sampled_from(VARIABLES),
)
def test_what_fits_renders_as_the_template_does(
    name: str,
    roles: list[str],
    texts: list[str],
    others: list[list[str]],
    variables: dict[str, Any],
) -> None:
    template, count = COMPILED[name], len(roles)
    made = residual_of(template, roles, texts[:count], variables)
    if made is None:
        return
    assert made.fits(texts[:count])
    for these in (texts, *others):
        if made.fits(these[:count]):
            assert made.filled(these[:count]) == rendered(template, roles, these[:count], variables)


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(sorted(TEMPLATES)),
    turns=st.integers(0, 3),
    system=st.booleans(),
    texts=st.lists(PLAIN, min_size=10, max_size=10),
    others=st.lists(PLAIN, min_size=10, max_size=10),
)
def test_plain_conversations_have_one(
    name: str, turns: int, system: bool, texts: list[str], others: list[str]
) -> None:
    roles = ["system"] * system + ["user", "assistant"] * turns + ["user"]
    count, template = len(roles), COMPILED[name]
    made = residual_of(template, roles, texts[:count], {"tools": TOOLS})
    assert made is not None
    assert made.fits(others[:count])
    assert made.filled(others[:count]) == rendered(
        template, roles, others[:count], {"tools": TOOLS}
    )
    shown = {base_of(part) for part in made.parts if isinstance(part, int)}
    assert shown == set(range(count))


FOLLOWED = [
    "{{ messages[0].get('content') }}|{{ messages[-1]['content'] }}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
    "{{ [messages[0].content, 1][0] }}{{ {'a': messages[1].content}['a'] }}",
    "{% for m in messages %}{{ loop.index }}{{ loop.previtem is defined }}{% endfor %}",
    "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "{% for m in [] %}x{% else %}{{ messages[0].content }}{% endfor %}",
    "{% set x = 1 %}{% for m in messages %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% if true %}{% set x = messages[0].content %}{% endif %}{{ x }}",
    "{{ 1 < 2 < 3 }}{{ 'a' not in ['b'] }}{{ -3 // 2 }}{{ 7 % 4 * 2 }}{{ not none }}{{ none }}",
    "{{ 'yes' if messages[0].content else 'no' }}{{ 'x' if false }}",
    "{{ messages[0].content or 'nothing' }}{{ messages[0].content and 'some' }}",
    "{{ ('-' + messages[0].content) or 'never' }}",
    "{{ messages[0].content == 'text 0' }}{{ 'text 0' != messages[0].content }}",
    "{{ 'xt' in messages[0].content }}{{ 'zz' not in messages[0].content }}",
    "{{ messages[0].content.strip('\\n') }}|{{ messages[0].content | trim | string }}",
    "{{ messages[0].content is mapping }}{{ messages[0].content is iterable }}{{ x is defined }}",
    "{{ messages[0].missing | default('d') }}{{ messages[0].content | default('d') }}",
    "{{ tools | tojson }}{{ tools[0].function.name | upper }}{{ tools | length }}",
    "{{ 'a b'.split(' ')[-1] }}{{ range(3) | list }}{{ (1, 2)[1] }}{{ 'abc'[1:] }}",
    "{% set a, b = 1, messages[0].content %}{{ a }}{{ b }}{{ b is not none }}",
    "{% set n = namespace(a=0) %}{% for m in messages %}{% set n.a = 1 %}{% endfor %}{{ n.a }}",
    "{{ messages | length }}{{ (messages | first).content }}{{ (messages | last).role }}",
    "{{ messages[0].content | tojson }}{{ messages | tojson }}",
    "{% set x %}{{ messages[0].content }}{% endset %}{{ x }}{{ x | trim }}",
    "{% set x %}{% set y = 1 %}{{ y }}{{ messages[0].role }}{% endset %}{{ x }}{{ y }}",
    "{% for m in messages %}{% set x %}{{ m.content }}.{% endset %}{{ x }}{% endfor %}{{ x }}",
    "{{ {'a': [messages[0].content, 1, none], 'é': {}} | tojson }}",
    "{{ (messages[0].role,) | tojson }}",
    "{{ messages[0].content | trim | trim }}{{ messages[0].content.lstrip().rstrip('x') }}",
    "{% set c = messages[0].content | trim %}{{ 'e' if not c }}{{ c.startswith('t') }}{{ c }}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(messages[0].content) }}{{ m('<b>') }}",
    (
        "{% macro m(x) %}{{ x }}{% endmacro %}{% set c = m(messages[0].content) | trim %}"
        "{{ c }}{{ 'yes' if c.endswith('0') }}{{ c == 'text 0' }}"
    ),
    (
        "{% macro m(x, y=2, z='a') %}{{ x }}{{ y }}{{ z }}{% endmacro %}"
        "{{ m(1) }}{{ m(1, z='b') }}{{ m(x=messages[0].content, y=3) }}{{ m(1, 2, 3) }}"
    ),
    "{% macro m(x) %}{{ x is undefined }}{{ x }}{% endmacro %}{{ m() }}",
    (
        "{% set n = namespace(a=0) %}{% macro m() %}{% set n.a = n.a + 1 %}{{ n.a }}{% endmacro %}"
        "{{ m() }}{{ m() }}{{ n.a }}"
    ),
    "{% set a = 1 %}{% macro m() %}{{ a }}{% set b = 2 %}{{ b }}{% endmacro %}{{ m() }}{{ b }}",
    (
        "{% macro m(x) %}{{ x }}{% endmacro %}{% macro o(x) %}[{{ m(x) }}]{% endmacro %}"
        "{% for m1 in messages %}{{ o(m1.content) }}{% endfor %}"
    ),
    (
        "{% macro m(x) %}{% if x is mapping %}"
        "{% for k, v in x | items %}{{ k }}({{ m(v) }}){% endfor %}"
        "{% else %}{{ x }}{% endif %}{% endmacro %}{{ m({'a': {'b': 1}, 'c': 'd'}) }}"
    ),
    (
        "{{ ['a', 'b'] | join('-') }}"
        "{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}"
    ),
    "{{ messages[0].content | upper }}",
    "{{ messages[0].content.upper() }}",
    "{{ messages[0].content in ['text 0'] }}",
    "{{ messages[0].content | default('d', true) }}",
    "{{ messages | map(attribute='content') | join(',') }}",
    "{{ messages | selectattr('content', 'string') | list | length }}",
    "{{ messages[0].content is eq 'text 0' }}",
    "{% macro m() %}x{% endmacro %}{{ m }}",
    "{% macro m() %}{{ varargs }}{% endmacro %}{{ m(1) }}",
    "{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(y=2) }}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}",
    "{% macro m(x=messages) %}x{% endmacro %}{{ m() }}",
    "{% if true %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }}",
    "{% for m in messages %}{% macro m() %}x{% endmacro %}{% endfor %}",
    "{% macro m() %}x{% endmacro %}{% macro m() %}y{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ a }}{% endmacro %}{% set a = 1 %}{{ m() }}",
    "{% set a = 1 %}{% macro m() %}{{ a }}{% endmacro %}{% set a = 2 %}{{ m() }}",
    (
        "{% set a = 1 %}{% macro m() %}{{ a }}{% endmacro %}{% if a %}{% set a = 2 %}{% endif %}"
        "{{ m() }}"
    ),
    "{% macro m() %}{{ messages | length }}{% endmacro %}{% set messages = [] %}{{ m() }}",
    "{% macro m() %}{{ a }}{% endmacro %}{% set a %}x{% endset %}{{ m() }}",
    "{% macro m(x) %}{% for k in x %}{{ k }}{% endfor %}{% endmacro %}{{ m({'a': 1} | items) }}",
    "{% set x = {'a': 1} | items %}{% for k, v in x %}{{ k }}{% endfor %}",
    "{% set x = [1, 2] | reverse %}{% for one in x %}{{ one }}{% endfor %}",
    "{% macro m() %}{{ later() }}{% endmacro %}{% macro later() %}x{% endmacro %}{{ m() }}",
    "{% set x | upper %}{{ messages[0].content }}{% endset %}{{ x }}",
    "{% for m in messages recursive %}{{ m.role }}{% endfor %}",
    "{% set n = namespace(a=1) %}{% for m in messages if n.a %}{% set n.a = 0 %}{% endfor %}",
    "{% if strftime_now is defined %}now{% endif %}",
    "{{ 1 / 2 }}",
    "{% generation %}x{% endgeneration %}",
    "{{ range(*[1]) }}",
    "{{ messages[0].content | length > 0 }}{{ messages[0].content | trim | length == 0 }}",
    "{{ 'some' if messages[0].content | count else 'none' }}{{ 0 < messages[0].content | length }}",
    "{{ messages[0].content.replace('t', 'T') }}{{ messages[0].content | replace('e', '') }}",
    "{{ messages[0].content.replace('zz', '').replace('yy', '') }}",
    "{{ messages[0].content | upper }}{{ messages[0].content.lower() }}",
    "{{ messages[0].content.split('zz')[-1] }}{{ messages[0].content.split('zz')[0] | trim }}",
    "{{ messages[0].content == none }}{{ messages[0].content != 1 }}",
    "{{ messages[0].content is sameas false }}{{ false is sameas false }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join }}",
    "{{ messages[0] == messages[0] }}{{ messages[0] in messages }}",
    "{% filter trim %} {{ messages[0].role }} {% endfilter %}",
    "{% set loop_messages = messages[1:] %}{% for m in loop_messages %}{{ m.content }}{% endfor %}",
    "{{ ('<t>' ~ messages[0].content).strip() }}{{ (messages[0].content ~ '</t> ') | trim }}",
    "{{ ('<t>' ~ messages[0].content ~ ' . ').rstrip() }}",
    "{{ ('  <t>' ~ messages[0].content).lstrip() }}",
    "{{ '<t>' in ('<t>' ~ messages[0].content) }}",
    "{{ ['2', 1] | map('int') | max }}",
]
NOT_FOLLOWED = [
    "{{ (' ' ~ messages[0].content).strip() }}",
    "{{ ('<t> ' ~ messages[0].content).strip() }}",
    "{{ 'q' in ('<t>' ~ messages[0].content) }}",
    "{{ messages[0].content | length > 1 }}",
    "{{ messages[0].content | length == messages[1].content | length }}",
    "{{ messages[0].content.split('xt')[0] }}",
    "{{ messages[0].content.split('') }}",
    "{{ messages[0].content.split() }}",
    "{{ messages[0].content.replace('e', 'E', 1) }}",
    "{{ messages[0].content.replace('t', '').replace('e', '') }}",
    "{{ messages[0].content is sameas messages[0].content }}",
    "{{ messages[0].content | int }}",
    "{{ messages[0].content | random }}",
    "{{ messages[0].content.parts }}",
    "{{ messages[0].content.asked }}",
    "{{ messages[0].content.json() }}",
    "{{ messages[0].content.says('x') }}",
    "{{ messages[0].content in [messages[1].content] }}",
    "{{ 'a'.format(messages[0].content) }}",
    "{{ lipsum() }}",
    "{{ cycler(1, 2).next() }}",
    "{{ messages[0].content | length }}",
    "{{ messages[0].content | trim | tojson }}",
    "{{ (messages[0].content ~ 'x') | tojson }}",
    "{{ messages | tojson(indent=1) }}",
    "{{ {messages[0].content: 1} | tojson }}",
    "{{ {1: messages[0].content} | tojson }}",
    "{{ messages }}",
    "{{ messages[0] }}",
    "{{ messages[0].content[0] }}",
    "{{ messages[0].content[1:] }}",
    "{{ messages[0].content.x }}",
    "{{ messages[0].content.split('x')[0] }}",
    "{{ messages[0].content > 'a' }}",
    "{{ messages[0].content == messages[1].content }}",
    "{{ messages[0].content in 'text 0 and more' }}",
    "{{ 'text 0'.startswith(messages[0].content) }}",
    "{{ (messages[0].content ~ 'x').startswith('t') }}",
    "{{ messages[0].content * 2 }}",
    "{{ messages[0].content + 1 }}",
    "{{ {messages[0].content: 1} }}",
    "{{ [messages[0].content] }}",
    "{{ [1][messages[0].content] }}",
    "{{ {'a': 1}[messages[0].content] }}",
    "{{ 'abc'[messages[0].content] }}",
    "{{ '%s' % messages[0].content }}",
    "{{ range(messages[0].content) | list }}",
    "{{ '%s' | format(messages[0].content) }}",
    "{% for c in messages[0].content %}{{ c }}{% endfor %}",
    "{% macro m(x) %}{{ x | length }}{% endmacro %}{{ m(messages[0].content) }}",
    "{% macro m(x) %}x{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(x) %}x{% endmacro %}{{ m(1, x=2) }}",
    "{% macro m(x) %}x{% endmacro %}{{ m(y=2) }}",
    "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(1) }}",
    "{% for m in messages %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{{ strftime_now('%Y') }}",
    "{{ raise_exception('no') }}",
    "{{ messages[0].content | safe }}",
    "{{ messages[0].content | trim(chars='#') }}",
    "{{ undefined_name.attribute }}",
    "{{ dict(a=1) }}",
]
ALIKE = ["system", "user"]


@pytest.mark.parametrize("source", FOLLOWED)
def test_constructs_that_are_followed(source: str) -> None:
    template, texts = Template(source), ["text 0", "text 1"]
    made = residual_of(template, ALIKE, texts, {"tools": TOOLS})
    assert made is not None
    for these in (texts, ["other", "text"], ["", ""], [" x\n", "y"], ["text 0", "text 0"]):
        if made.fits(these):
            assert made.filled(these) == rendered(template, ALIKE, these, {"tools": TOOLS})
    assert made.fits(texts)


@pytest.mark.parametrize("source", NOT_FOLLOWED)
def test_constructs_that_are_not(source: str) -> None:
    with pytest.raises(Unknown):
        Template(source).residual(tuple(ALIKE), ["text 0", "text 1"], {})


@pytest.mark.parametrize(
    ("source", "text", "others_that_fit", "others_that_do_not"),
    [
        ("{{ 'a' if messages[0].content else 'b' }}", "x", ["y"], [""]),
        ("{{ messages[0].content | trim }}", "x", ["y", " y", ""], []),
        ("{{ messages[0].content.strip().rstrip('.') }}", "x", [" y", ".y "], ["y. ", "."]),
        ("{{ 'a' if messages[0].content | trim else 'b' }}", "x", ["y "], ["", " "]),
        ("{{ 'q' in messages[0].content }}", "x", ["y", ""], ["q", "aqa"]),
        ("{{ messages[0].content == 'x' }}", "x", ["x"], ["y", ""]),
        ("{{ messages[0].content != 'x' }}", "y", ["z"], ["x"]),
        ("{{ messages[0].content.startswith('x') }}", "xy", ["x"], ["y", ""]),
        ("{{ messages[0].content.endswith('x') }}", "y", ["xy"], ["x", "yx"]),
        ("{{ messages[0].content }}", "x", ["", "anything"], []),
    ],
)
def test_guards_let_through_what_answers_alike(
    source: str, text: str, others_that_fit: list[str], others_that_do_not: list[str]
) -> None:
    made = residual_of(Template(source), ["user"], [text], {})
    assert made is not None
    assert [made.fits([other]) for other in others_that_fit] == [True] * len(others_that_fit)
    assert [made.fits([other]) for other in others_that_do_not] == [False] * len(others_that_do_not)


def test_many_strings_become_one_in_the_time_of_their_copy() -> None:
    """As many as there may be tools in a body. Put together one by one, they take 6 s."""
    began_s = time.thread_time()
    assert merged(["tool" * 64, ""] * 20_000) == ("tool" * 64 * 20_000,)
    assert time.thread_time() - began_s < 1


def test_what_is_made_of_texts_has_numbers_of_their_own() -> None:
    texts = [" a", "b"]
    stripped, written = made_of(0, "strip", ()), made_of(1, "tojson", ())
    assert made_of(0, "strip", ()) == stripped
    assert (text_at(texts, stripped), text_at(texts, written)) == ("a", '"b"')
    assert text_at(["b"], written, first=1) == '"b"'
    assert [base_of(number) for number in (stripped, written, 1)] == [0, 1, 1]
    with pytest.raises(Unknown):
        made_of(stripped, "strip", ())


def test_there_are_few_ways_to_make_a_text_of_one() -> None:
    """Words may come with requests. In a process of its own, whose ways nobody else needs."""
    said = (
        "from tokenlane.tokens.chat.residual import Unknown, made_of\n"
        "for number in range(128): made_of(0, 'strip', (str(number),))\n"
        "made_of(0, 'strip', ('7',))\n"
        "try: made_of(0, 'strip', ('128',))\n"
        "except Unknown: print('unknown')\n"
    )
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", said]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout == "unknown\n"


def test_what_a_guard_asks_is_asked_once() -> None:
    asked = "{% if 'q' not in messages[0].content %}{{ messages[0].content }}{% endif %}"
    template = Template(f"{{% for n in range(3) %}}{asked}{{% endfor %}}")
    made = residual_of(template, ["user"], ["a"], {})
    assert made is not None
    assert len(made.guards) == 1
    assert made.parts == (0, 0, 0)


CALL = "messages[1].tool_calls[0]"
ARGUMENTS = f"{CALL}.function.arguments"
# As templates show a value.
VALUE = "{{ v if v is string else v | tojson(ensure_ascii=False) }}{{ v if v is not iterable }};"
GIVEN = [
    '{"a": 1}', "{}", '{"a": 2}', '{"a": "t"}', '{"a": " x\\n"}', '{"a": 0}', '{"a": -7, "b": "é"}',
    '{"b": {"c": "é <"}}', '{"a":1,"b":[null,1e9]}', '{"a": true}', '{"a": null}', '{"a": 1.50}',
    '{"a": 1e400}', '{"a": []}', '{"a": {}}', '{"a": 1, "a": "again"}', '{"": ""}', "no JSON",
    "[1]", '{"\\ud800": "\\ud800"}',
]  # fmt: skip


def walked(body: str) -> str:
    """As templates walk through arguments."""
    return f"{{% for k, v in {ARGUMENTS}.items() %}}<{{{{ k }}}}>{body}{{% endfor %}}"


def called(texts: list[str]) -> list[dict[str, Any]]:
    """A question, a call and what it gave, of seven texts."""
    asked, said, call_id, name, arguments, gave, answered = texts
    function = {"name": name, "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": said, "tool_calls": [call]},
        {"role": "tool", "content": gave, "tool_call_id": answered},
    ]


@pytest.mark.parametrize(
    "source",
    [
        f"{{{{ {CALL}.id }}}}{{{{ {CALL}.function.name }}}}{{{{ {ARGUMENTS} | tojson }}}}",
        f"{{{{ 'some' if {ARGUMENTS} else 'none' }}}}",
        f"{{{{ {ARGUMENTS} is mapping }}}}{{{{ {ARGUMENTS} is string }}}}",
        f"{{{{ {ARGUMENTS} is iterable }}}}{{{{ {ARGUMENTS} is none }}}}",
        "{{ messages[2].tool_call_id }}{{ messages[1].tool_calls | length }}",
        "{{ 'tool_calls' in messages[0] }}{{ messages[0].tool_calls is defined }}",
        f"{{{{ ({ARGUMENTS} | tojson) ~ '.' }}}}",
        f"{{{{ {CALL} | tojson }}}}{{{{ {CALL}.function | tojson }}}}",
        "{{ messages[1].tool_calls | tojson }}{{ messages[1:] | tojson }}",
        walked(VALUE),
        f"{{% for k, v in {ARGUMENTS} | items %}}<{{{{ k }}}}>{VALUE}{{% endfor %}}",
        f"{{% for k, v in {ARGUMENTS} | dictsort %}}<{{{{ k }}}}>{VALUE}{{% endfor %}}",
        f"{{% for k in {ARGUMENTS} %}}{{% set v = {ARGUMENTS}[k] %}}{VALUE}{{% endfor %}}",
        f"{{% for k in {ARGUMENTS}.keys() | list %}}{{{{ k }}}}{{% endfor %}}",
        f"{{{{ {ARGUMENTS}.a }}}}{{{{ {ARGUMENTS}['b'] | default('d') }}}}{{{{ {ARGUMENTS}.zz }}}}",
        f"{{{{ {ARGUMENTS}.get('a', 'none') }}}}{{{{ 'a' in {ARGUMENTS} }}}}",
        f"{{{{ {ARGUMENTS} | length }}}}{{{{ {ARGUMENTS} | list }}}}",
        walked(
            "{{ v is string }}{{ v is mapping }}{{ v is number }}{{ v is integer }}"
            "{{ v is float }}{{ v is boolean }}{{ v is none }}{{ v is true }}{{ v is sequence }}"
        ),
        walked("{{ v.strip() if v is string else '-' }}{{ 'x' in v if v is string }}"),
        walked("{{ v | length > 0 if v is string }}{{ 1 if v is not float and v else 0 }}"),
    ],
)
@pytest.mark.parametrize("at_hand", GIVEN)
def test_what_is_followed_of_a_call(source: str, at_hand: str) -> None:
    template, forms = Template(source), ("user", "assistant, text, 1 called", "tool, answering")
    texts = texts_of(called(["ask", "say", "1", "f", at_hand, "so", "1"]), forms)
    try:
        made = template.residual(forms, texts, {})
    except Unknown:
        assert at_hand != GIVEN[0]
        return
    assert made.fits(texts)
    for arguments in GIVEN:
        messages = called(["", "x", "id", "g", arguments, "", "id"])
        assert forms_of(messages) == forms
        others = texts_of(messages, forms)
        if made.fits(others):
            expected = template.render(
                conversation(messages, template.content_format),
                {},
                add_generation_prompt=False,
                continue_final_message=False,
            )
            assert made.filled(others) == expected


@pytest.mark.parametrize(
    "value",
    [
        ARGUMENTS, f"{ARGUMENTS} | tojson(indent=2)", f"{ARGUMENTS}.items()", CALL,
        f"{ARGUMENTS} | string", f"{ARGUMENTS} == {{}}", f"{ARGUMENTS} ~ ''", f"[{ARGUMENTS}]",
        f"{CALL}.id == messages[2].tool_call_id", f"({ARGUMENTS} | tojson)[1:]",
        f"{ARGUMENTS} | default('d', true)", f"{ARGUMENTS} | tojson | length > 1",
        f"{ARGUMENTS}.values()", f"{ARGUMENTS}.pop('a')", f"{ARGUMENTS}.d.e", f"{ARGUMENTS}.d",
        f"{ARGUMENTS}.l[0]", f"{ARGUMENTS}.l | length", f"{ARGUMENTS}.a + 1", f"{ARGUMENTS}.a > 0",
        f"{ARGUMENTS}.s | tojson", f"not {ARGUMENTS}.f",
    ],
)  # fmt: skip
def test_what_is_not_followed_of_a_call(value: str) -> None:
    template = Template(f"{{% for key in [1] %}}{{{{ {value} }}}}{{% endfor %}}")
    arguments = '{"a": 1, "d": {"e": "f"}, "l": [1], "s": "t", "f": 0.5}'
    texts = ["ask", "say", "1", "f", arguments, "so", "1"]
    with pytest.raises(Unknown):
        template.residual(("user", "assistant, text, 1 called", "tool, answering"), texts, {})


@pytest.mark.parametrize(
    "arguments", [{f"k{number}": "" for number in range(25)}, {"k" * 1001: ""}, {"a": 1e400}]
)
def test_arguments_that_are_not_taken_apart(arguments: dict[str, Any]) -> None:
    """Structures are kept, and the ways to make a text of one are few."""
    texts = ["ask", "say", "1", "f", json.dumps(arguments), "so", "1"]
    with pytest.raises(Unknown):
        Template(walked(VALUE)).residual(
            ("user", "assistant, text, 1 called", "tool, answering"), texts, {}
        )


def test_a_guard_may_ask_for_a_value_that_other_arguments_do_not_have() -> None:
    """Questions alike are one guard, which may stand before the one on the arguments' keys."""
    template = Template(
        "{% for m in messages %}{% for call in m.tool_calls or [] %}"
        "{% for k, v in call.function.arguments.items() %}{{ 'x' in v }}{% endfor %}"
        "{% endfor %}{% endfor %}"
    )
    forms = ("user", "assistant, null, 1 called", "assistant, null, 1 called")
    texts = ["a", "1", "f", '{"a": "y"}', "2", "f", '{"b": "y", "c": "y"}']
    made = template.residual(forms, texts, {})
    assert made.fits(texts)
    assert not made.fits([*texts[:-1], "{}"])
    assert not made.fits([*texts[:-1], '{"b": "y"}'])

"""The fast engines give what the reference ones give, or give up."""

import threading
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import many
from tests.tokens.models import SHARED_NAMES, shared
from tokenlane.errors import RequestError
from tokenlane.tokens import engines
from tokenlane.tokens.chat.minijinja_template import FastTemplate
from tokenlane.tokens.chat.template import Template, environment
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.engines import Refused
from tokenlane.tokens.tokenizer import Tokenizer

NAMES = ("demo", *SHARED_NAMES)


@cache
def pair(name: str) -> tuple[Tokenizer, Tokenizer]:
    """A model with fast paths, and without."""
    folder = demo_folder() if name == "demo" else shared(name)
    return Tokenizer.load(name, folder), Tokenizer.load(name, folder, fast=False)


@pytest.mark.parametrize("name", NAMES)
def test_what_works_for_whom(name: str) -> None:
    quick, plain = pair(name)
    assert plain.fast == engines.FastPaths()
    assert quick.fast.encoder == "fastokens"
    assert "encoder" not in quick.fast.why
    if name in ("demo", "qwen3"):
        assert quick.fast.template == "minijinja"
        assert quick.fast.why == {}
    else:
        assert quick.fast.why["template"] == "there is none"


@pytest.mark.parametrize("name", NAMES)
def test_fast_ids_are_the_ids(name: str) -> None:
    quick, plain = pair(name)
    added = plain.encoder.added
    tokens = st.sampled_from(added[:200])
    runs = st.builds(str.__mul__, st.sampled_from(" \n\t\ra0.é\u0301日"), st.integers(0, 300))
    part = tokens | tokens.map(lambda token: token[:-1]) | runs | st.text(max_size=20)
    texts = st.lists(part, max_size=12).map("".join)

    @settings(max_examples=many(30), deadline=None)
    @given(text=texts, special=st.booleans(), more=st.lists(texts, max_size=3))
    def same(text: str, special: bool, more: list[str]) -> None:
        assert quick.encode(text, add_special_tokens=special) == plain.encode(
            text, add_special_tokens=special
        )
        assert quick.encoder.encode_each([text, *more]) == plain.encoder.encode_each([text, *more])

    same()


@pytest.mark.parametrize("name", NAMES)
def test_text_that_is_no_unicode_is_refused_alike(name: str) -> None:
    for model in pair(name):
        with pytest.raises(RequestError, match="not valid Unicode") as refused:
            model.encode("a \ud800", add_special_tokens=False)
        assert refused.value.status == 400
        with pytest.raises(RequestError, match="not valid Unicode"):
            model.encoder.encode_each(["a", "\ud800"])


def test_one_engine_serves_several_threads() -> None:
    quick, plain = pair("demo")
    texts = [f"text {n} <|im_start|> \n" * (n + 1) for n in range(40)]
    expected = [plain.encoder.encode_piece(text) for text in texts]
    wrong: list[int] = []

    def encode() -> None:
        for at, text in enumerate(texts * 5):
            if quick.encoder.encode_piece(text) != expected[at % len(texts)]:
                wrong.append(at)

    threads = [threading.Thread(target=encode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@cache
def engine(source: str) -> FastTemplate:
    return FastTemplate(source, environment())


@cache
def reference(source: str) -> Template:
    return Template(source)


def both(source: str, messages: list[dict[str, Any]], **variables: Any) -> tuple[str, str | None]:
    """The reference's text, and the fast engine's; the former "!" where it refuses."""
    try:
        expected = reference(source).render(
            messages, variables, add_generation_prompt=True, continue_final_message=False
        )
    except RequestError:
        expected = "!"
    given = {**variables, "add_generation_prompt": True}
    return expected, engine(source).render(messages, given)


@pytest.mark.parametrize(
    "source",
    [
        "a\n  {% if true %}\nb\n  {% endif %}\nc\n",
        "{{ x | tojson }}|{{ x | tojson(indent=2) }}|{{ messages | tojson }}",
        "{{ x.a.strip('\\n') }}|{{ x.a | trim }}|{{ x.a.strip() }}|{{ x.a.split('b')[-1] }}",
        "{% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}{{ x }}{{ x.l }}",
        "{% for m in messages[::-1] %}{% if loop.last %}{% break %}{% endif %}{{ m }}{% endfor %}",
        ("{% set n = namespace(i=0) %}{% for m in messages %}{% set n.i = n.i + 1 %}"
         "{% endfor %}{{ n.i > 1 }}"),
        "{{ nope }}{{ nope is defined }}{{ x.nope is none }}{{ nope | default('d') }}",
        "{% macro f(m, n=1) %}<{{ m.role }}{{ n }}>{% endmacro %}{{ f(messages[0]) }}",
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
        "{{ messages | map(attribute='content') | join('-') }}{{ x.l is iterable }}",
        "{{ x.a ~ x.l ~ x.t ~ x.i }}{{ x.a is string }}{{ x is mapping }}{{ not x.l }}",
    ],
)  # fmt: skip
def test_fast_texts_are_the_texts(source: str) -> None:
    x = {"b": 1, "a": "\nab <é&'\"> 日\n", "l": ["it's", 2, None], "t": True, "i": 2**62}
    messages = [{"role": "user", "content": "c"}, {"role": "assistant", "content": ""}]
    expected, found = both(source, messages, x=x)
    assert found == expected


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{{ x }}", 1e16),
        ("{{ x }}", {"deep": [2.0]}),
        ("{{ x }}", 2**70),
        ("{{ x.strip() }}", "\x1c a"),
        ("{{ nope | tojson }}", 1),
        ("{{ {'a': nope} | tojson }}", 1),
        ("{{ x.nope.nope }}", {}),
        ("{{ raise_exception('no') }}", 1),
        ("{{ x is iterable }}", None),
        ("{{ x }}", "\ud800"),
        ("{{ 'a' + x }}", 1),
        # Null, where it would be taken for nothing.
        ("{% for a in x.a %}{% endfor %}", {"a": None}),
        ("{% for t in x %}{% for a in t['a'].b %}{% endfor %}{% endfor %}", [{"a": {"b": None}}]),
        ("{% for k, v in x.items() %}{% for a in v %}{% endfor %}{% endfor %}", {"a": None}),
        ("{% for a in x['b' ~ 'c'] %}{% endfor %}", {"bc": None}),
        ("{% set y = x.a or x.b %}{% for a in y %}{% endfor %}", {"b": None}),
        ("{% set y = {'a': x.b} %}{% for a in y.a %}{% endfor %}", {"b": None}),
        ("{% set n = namespace() %}{% set n.a = x.b %}{{ n.a | join }}", {"b": None}),
        ("{% macro f(a) %}{% for b in a %}{% endfor %}{% endmacro %}{{ f(x.b) }}", {"b": None}),
        ("{% for a in x.get('a', []) %}{% endfor %}", {"a": None}),
        ("{{ x.a | default([]) | reverse | join }}", {"a": None}),
        ("{{ ['a', 'b'] | join(x.by) }}", {"by": None}),
    ],
)
def test_the_reference_is_asked(source: str, value: Any) -> None:
    assert both(source, [], x=value)[1] is None


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages[1:] %}{{ m.content }}{% endfor %}{{ x.a }}",
        "{% set n = namespace() %}{% for m in messages if m.a %}{% set n.i = 1 %}{% endfor %}",
        "{% if tools %}{% for t in tools %}{{ t }}{% endfor %}{% endif %}",
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c }}{% endfor %}{% endfor %}",
        "{% macro f(a) %}{% for b in a %}{{ b }}{% endfor %}{% endmacro %}{{ f(x.b) }}{{ x.a }}",
        "{% for k, v in x.items() %}{{ k }}{{ v }}{% endfor %}",
    ],
)
def test_a_null_elsewhere_is_rendered_fast(source: str) -> None:
    """As tools have them in good order, `"default": null` above all."""
    expected, found = both(
        source, [{"content": "a"}, {"content": "b"}], tools=None, x={"a": None, "b": ["c"]}
    )
    assert found == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ x.pop('a') }}", "{{ x.append(1) }}", "{{ x.update({}) }}", "{{ x.__class__ }}",
        "{{ x.keys }}", "{{ x['pop'] }}", "{{ x < 1 }}", "{{ messages[0].n > 1 }}", "{{ x in y }}",
        "{{ 'items' in x }}", "{{ x.splitlines() }}", "{{ x.upper() }}", "{{ x | title }}",
        "{{ x | indent }}", "{{ x | int }}", "{{ x | sort }}", "{{ x | list }}", "{{ 1.5 }}",
        "{{ now is defined }}", "{{ dict(a=1) }}", "{{ x.split(y) }}", "{{ x() }}",
        "{{ [[x]] | tojson }}", "{{ x | map('title') | join }}", "{{ x is callable }}",
        "{% generation %}{% endgeneration %}", "{% include 'x' %}", "{{ [x] }}",
        "{% set n = messages[0].n %}{{ n > 1 }}",
        "{% set ns = namespace(n=0) %}{% set ns.n = x %}{{ ns.n > 1 }}",
        "{% for n in x %}{{ n > 1 }}{% endfor %}",
        "{% set n = namespace(i=0) %}{% for d in x if n.i != 2 %}{% set n.i = 2 %}{% endfor %}",
        "{% macro f(a) %}{{ a }}{% endmacro %}{% for d in x if f(d) %}{{ d }}{% endfor %}",
        "{% macro f(a, b=a) %}{{ b }}{% endmacro %}{{ f(1) }}",
        "{% macro f(a) %}{{ varargs }}{% endmacro %}{{ f(1) }}",
        "{% macro f(a) %}{{ kwargs }}{% endmacro %}{{ f(1) }}",
        "{{ 'abc'[2:0:-1] }}", "{{ x[1:] }}", "{{ x.a[:1] }}", "{{ x.split('a')[1][1:] }}",
        "a\r\n{{ x }}", "{{ 'a\rb' }}", "\x1c{%- if x %}a{% endif %}",
        "{% raw %}\n a{% endraw %}", "{%- raw -%} a{% endraw %}",
        "{% set n = namespace(a=1) %}{{ n }}", "{% set n = namespace(a=1) %}{{ n.items() }}",
        "{% set n = namespace(a=1) %}{% set m = n %}", "{{ namespace(a=1) }}",
        "{% set n = namespace({'a': 1}) %}",
        "{% if x | selectattr('a') %}a{% endif %}", "{% set y = x | map('trim') %}{{ y | join }}",
        "{{ x | map('join') | list }}", "{{ x | reverse or 'a' }}", "{{ f(*x) }}",
        "{% set y = none %}{% if x %}{% set y = x %}{% endif %}{% for a in y %}{% endfor %}",
        "{% for a in x.get('a') %}{% endfor %}", "{{ x.get('a') | list | length }}",
    ],
)  # fmt: skip
def test_constructs_that_may_differ_are_refused(source: str) -> None:
    with pytest.raises(Refused, match="not known to be alike"):
        engine(source)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
SOURCE = (
    "{{ x }}|{{ x | string }}|{{ x ~ 'a' }}|{{ x is string }}{{ x is mapping }}{{ x is number }}"
    "{{ x is none }}{{ x is boolean }}{{ x == 1 }}{{ x == y }}{% if x %}t{% endif %}|"
    "{% if x is mapping %}{% for k, v in x.items() %}{{ k }}{{ v }}{% endfor %}{{ x | length }}"
    "{% elif x is string %}{{ x | trim }}{{ x.strip() }}{{ x.split('a')[-1] }}{{ (x or '')[1:] }}"
    "{{ x | upper }}"
    "{% elif x is iterable %}{{ x[0] }}{{ (x or [])[::-1] | tojson }}{{ x | join(',') }}{% endif %}"
    "{% if x is not none %}{{ x | tojson }}{% endif %}"
)


@given(x=JSON, y=JSON)
def test_values_are_shown_alike(x: Any, y: Any) -> None:
    expected, found = both(SOURCE, [], x=x, y=y)
    assert found in (None, expected)

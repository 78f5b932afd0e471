"""Chat templates behave as transformers sets them up."""

from datetime import datetime
from typing import Any

import pytest

from tokenlane.errors import ConfigError, RequestError, Unrenderable
from tokenlane.tokens.chat.template import CONTINUE_MARK, Template


def render(source: str, messages: Any = None, *, go_on: bool = False, **variables: Any) -> str:
    given = messages or [{"role": "user", "content": "hi"}]
    return Template(source).render(
        given, variables, add_generation_prompt=not go_on, continue_final_message=go_on
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # trim_blocks and lstrip_blocks
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        # tojson: no HTML escapes, no ASCII escapes, its own options
        ("{{ {'b': '<é&\\'>', 'a': 1.0} | tojson }}", '{"b": "<é&\'>", "a": 1.0}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}",
         '{\n "a": 2,\n "b": 1\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        # loop controls
        (("{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% elif x == 4 %}{% break %}"
         "{% endif %}{{ x }}{% endfor %}"), "13"),
        # the generation tag shows its body; what is set inside stays inside
        ("{% generation %}{% set y = 1 %}[{{ y }}]{% endgeneration %}{{ y is defined }}",
         "[1]False"),
        ("{{ messages[0].content }}{{ add_generation_prompt }}", "hiTrue"),
        ("{{ undefined_name }}|{{ x | default('d') }}", "|d"),
    ],
)  # fmt: skip
def test_rendering(source: str, expected: str) -> None:
    assert render(source) == expected


def test_the_date_makes_a_template_volatile() -> None:
    template = Template("{{ strftime_now('%Y') }}")
    assert template.volatile
    assert not Template("x").volatile
    year = template.render([], {}, add_generation_prompt=True, continue_final_message=False)
    assert abs(int(year) - datetime.now().astimezone().year) <= 1


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ undefined_name.attribute }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ undefined_name | tojson }}",
        "{% for x in range(10000000) %}{% endfor %}",
        "{{ raise_exception('no') }}",
    ],
)
def test_what_a_template_raises_is_a_bad_request(source: str) -> None:
    with pytest.raises(RequestError) as refused:
        render(source)
    assert refused.value.status == 400


def test_a_template_that_calls_itself_without_end_is_left_to_the_replica() -> None:
    with pytest.raises(Unrenderable, match="json"):
        render("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}")


def test_a_refusal_quotes_the_template_and_never_the_request() -> None:
    with pytest.raises(RequestError) as plain:
        render("{{ raise_exception('Roles must alternate!') }}")
    assert plain.value.message.endswith("Roles must alternate!")
    secret = [{"role": "secret-7", "content": ""}]
    with pytest.raises(RequestError) as mixed:
        render("{{ raise_exception('Unknown role: ' + messages[0].role) }}", secret)
    assert "secret-7" not in mixed.value.message


def test_variables_are_the_names_read_from_outside() -> None:
    source = (
        "{% set a = b %}{{ a }}{{ raise_exception(c) }}{% for d in range(2) %}{{ d }}{% endfor %}"
    )
    assert Template(source).variables == {"b", "c", "raise_exception"}


def test_a_template_that_does_not_compile_names_its_line() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        Template("x\n{% if %}")


TURNS = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        (TURNS, "go on", "<go on"),
        (TURNS, "space after ", "<space after "),
        ("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", "a ", "<a"),
        (TURNS, CONTINUE_MARK + "b", "<" + CONTINUE_MARK + "b"),
        (TURNS, "", "<"),
    ],
)
def test_the_final_message_is_continued(source: str, content: str, expected: str) -> None:
    messages = [{"role": "assistant", "content": content}]
    assert render(source, messages, go_on=True) == expected
    assert messages == [{"role": "assistant", "content": content}]


def test_the_last_text_part_is_continued() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    source = "{% for c in messages[0].content %}[{{ c.text }}]{% endfor %}"
    assert render(source, [{"role": "assistant", "content": parts}], go_on=True) == "[a][b"


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("{{ messages[0].content | upper }}", "abc"),
        ("{{ messages[0].role }}", "abc"),
        ("{{ messages[0].content }}", []),
    ],
)
def test_what_cannot_be_continued_is_refused(source: str, content: Any) -> None:
    with pytest.raises(RequestError, match="cannot be continued"):
        render(source, [{"role": "assistant", "content": content}], go_on=True)


def test_continuing_and_prompting_exclude_each_other() -> None:
    with pytest.raises(RequestError, match="not compatible"):
        Template(TURNS).render(
            [{"content": "x"}], {}, add_generation_prompt=True, continue_final_message=True
        )

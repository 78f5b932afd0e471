"""The content format a template expects, decided as vLLM decides it."""

import pytest

from tokenlane.tokens.chat.content_formats import content_format
from tokenlane.tokens.chat.template import environment

CASES = [
    ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
    ("{% for m in messages %}{% for c in m.content %}x{% endfor %}{% endfor %}", "openai"),
    ("{% for m in messages %}{% for c in m['content'] %}x{% endfor %}{% endfor %}", "openai"),
    ("{% for m in messages %}{% for c in m['other'] %}x{% endfor %}{% endfor %}", "string"),
    ("{% for m in messages[1:] %}{% for c in m.content | list %}x{% endfor %}{% endfor %}",
     "openai"),
    (("{% set rest = messages[1:] %}{% set more = rest %}"
     "{% for m in more %}{% for c in m.content %}x{% endfor %}{% endfor %}"), "openai"),
    (("{% set a = messages %}{% set messages = a %}"
     "{% for m in a %}{{ m.content }}{% endfor %}"), "string"),
    ("{% for content in x %}{% endfor %}{% for c in content %}{% endfor %}", "openai"),
    ("{% macro show(content) %}{% for c in content %}x{% endfor %}{% endmacro %}", "string"),
    (("{% macro show(body) %}{% for c in body %}x{% endfor %}{% endmacro %}"
     "{% for m in messages %}{{ show(m.content) }}{% endfor %}"), "openai"),
    (("{% macro show(a, body) %}{% for c in body %}x{% endfor %}{% endmacro %}"
     "{% for m in messages %}{{ show(1, body=m['content']) }}{% endfor %}"), "openai"),
    (("{% macro show(a, body) %}{% for c in a %}x{% endfor %}{% endmacro %}"
     "{% for m in messages %}{{ show(1, body=m.content) }}{% endfor %}"), "string"),
    ("{% for a, b in messages %}{% for c in content %}{% endfor %}{% endfor %}", "string"),
    (("{% for m in messages if m.content is string %}{% for c in m.content %}{% endfor %}"
     "{% endfor %}"), "openai"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), CASES)
def test_format(source: str, expected: str) -> None:
    assert content_format(environment().parse(source)) == expected

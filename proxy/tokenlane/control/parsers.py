"""Which HTTP parser the control plane runs on.

Invariants:
- aiohttp's parser in C or none: of the holes that aiohttp had, most were in the one in Python,
  which it falls back to where its extensions are missing or switched off.
"""

from aiohttp import http_parser

from tokenlane.errors import ConfigError


def check_parsers() -> None:
    """ConfigError where aiohttp fell back."""
    in_python = (http_parser.HttpRequestParserPy, http_parser.HttpResponseParserPy)
    if http_parser.HttpRequestParser in in_python or http_parser.HttpResponseParser in in_python:
        raise ConfigError(
            "aiohttp runs without its C parser; unset AIOHTTP_NO_EXTENSIONS, or install a wheel"
        )

"""Handlers for tests of the server."""

from tokenlane.http.server import Exchange

TEXT = ((b"content-type", b"text/plain"),)


async def echo(exchange: Exchange) -> None:
    """Says what it was asked, and the body."""
    body = await exchange.read_body()
    exchange.respond(200, TEXT, exchange.head.target + b" " + body)


async def never(exchange: Exchange) -> None:
    raise AssertionError("this request must not reach a handler")

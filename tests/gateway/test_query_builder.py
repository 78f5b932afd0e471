"""What routing is told of a request besides its ids."""

import json
from typing import Any

import pytest

from tokenlane.config.settings import RoutingSettings
from tokenlane.gateway.query_builder import QueryBuilder, head_tokens, session_of
from tokenlane.protocols.bodies import CompletionBody, Kind
from tokenlane.protocols.inspection import inspect

USER = {"role": "user", "content": "And what about this? " * 30}


def head(messages: list[Any], **fields: Any) -> int:
    body = json.dumps({"messages": messages, **fields}).encode()
    return head_tokens(inspect(Kind.CHAT, body), 16)


def system(length: int, role: str = "system") -> dict[str, str]:
    return {"role": role, "content": "x" * length}


def test_the_head_ends_with_the_system_prompt() -> None:
    one = head([system(6000), USER])
    assert 1000 <= one <= 1010
    assert head([system(6000), USER, USER, system(900)]) == one
    assert head([system(6000), system(6000, "developer"), USER]) > 2 * 1000
    assert head([system(6000), USER], tools=[{"type": "function", "name": "t" * 600}]) > one + 100


def test_where_no_system_prompt_fills_a_block_the_first_message_is_the_head() -> None:
    first = head([USER])
    assert first == head([USER, system(100), USER]) > 16
    assert head([system(3), USER, USER]) > first


def test_a_head_longer_than_what_is_looked_at() -> None:
    assert head([system(90_000), USER]) == pytest.approx(65_536 / 6, abs=2)
    # A long message behind the system prompt is none of it.
    assert head([system(6000), {"role": "user", "content": "y" * 90_000}]) == head(
        [system(6000), USER]
    )


@pytest.mark.parametrize("messages", [[], [1], [{"content": "x"}], ["x"], [{"role": []}], {}, None])
def test_messages_that_are_none_have_no_head(messages: Any) -> None:
    assert head(messages) in range(3)


def test_only_chats_have_a_known_head() -> None:
    assert head_tokens(inspect(Kind.COMPLETION, b'{"prompt": "x"}'), 16) == 0


def test_the_first_configured_header_that_is_there_names_the_session() -> None:
    names = b"x-session-affinity", b"x-session-id"
    assert session_of([], names) == 0
    assert session_of([(b"x-session-id", b"")], names) == 0
    by_id = session_of([(b"x-session-id", b"a")], names)
    assert by_id > 0
    assert session_of([(b"x-session-id", b"b"), (b"x-session-affinity", b"a")], names) == by_id


@pytest.mark.parametrize("policy", ["affinity", "random"])
def test_the_parent_is_read_under_every_policy(policy: str) -> None:
    asking = QueryBuilder(RoutingSettings(policy=policy), lambda: 5)
    headers = [(b"x-correlation-id", b"a"), (b"x-request-id", b"b")]
    request = inspect(Kind.COMPLETION, b'{"prompt": "x"}')
    assert isinstance(request, CompletionBody)
    query = asking.query("demo", request, None, "no-tokenizer", 16, headers)
    assert query.parent == asking.parent(headers) == session_of(headers, [b"x-correlation-id"]) > 0
    other = QueryBuilder(RoutingSettings(parent_headers=("X-Request-ID",)), lambda: 5)
    assert other.parent(headers) not in {0, query.parent}
    assert other.parent(headers[:1]) == 0


@pytest.mark.parametrize(("policy", "reads"), [("session", True), ("affinity", False)])
def test_only_the_session_policy_looks_for_sessions(policy: str, reads: bool) -> None:
    settings = RoutingSettings(policy=policy, session_headers=("X-Chat",))
    request = inspect(Kind.CHAT, b'{"messages": []}')
    query = QueryBuilder(settings, lambda: 5).unread(request, 16, [(b"x-chat", b"7")])
    assert (query.session != 0, query.draw) == (reads, 5)

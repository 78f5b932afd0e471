"""What a replica says of a failure, in Anthropic's shape where it said it in another."""

import json

import pytest

from tokenlane.protocols.dialects import as_messages_error


@pytest.mark.parametrize(
    ("status", "said", "kind", "message"),
    [
        (400, {"error": {"message": "no", "type": "Bad Request", "code": 400}},
         "invalid_request_error", "no"),
        (401, {"error": "Unauthorized"}, "authentication_error", "Unauthorized"),
        (404, {"detail": "Not Found"}, "not_found_error", "Not Found"),
        (405, {"detail": "Method Not Allowed"}, "invalid_request_error", "Method Not Allowed"),
        (422, {"detail": [{"loc": ["body"]}]}, "invalid_request_error",
         "The replica answered with status 422."),
        (503, {"error": {"message": "busy"}}, "overloaded_error", "busy"),
        (500, {}, "api_error", "The replica answered with status 500."),
        (500, {"error": {"message": 7}}, "api_error", "The replica answered with status 500."),
    ],
)  # fmt: skip
def test_in_other_words(status: int, said: object, kind: str, message: str) -> None:
    told = json.loads(as_messages_error(status, json.dumps(said).encode(), b"id-1"))
    assert told == {
        "type": "error", "error": {"type": kind, "message": message}, "request_id": "id-1",
    }  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        b'{"type": "error", "error": {"type": "BadRequestError", "message": "no"}}',
        b"<html>Bad gateway</html>", b"", b"[1]", b'"x"', b"\xff\x00", b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_passes_as_it_is(body: bytes) -> None:
    assert as_messages_error(502, body, b"id-1") == body

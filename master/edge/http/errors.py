"""Errors in OpenAI's form, and what all forms have in common."""

from collections.abc import Callable

import msgspec

from master.edge.http.status import HTTP_STATUS
from master.errors import WORKERS_LOST, ErrorKind, ServingError

MAX_MESSAGE_CHARACTERS = 4000

# An API's form of an error, as JSON.
ErrorBody = Callable[[ServingError], bytes]

INTERNAL_ERROR = ServingError(ErrorKind.INTERNAL, "internal error; the server's log has the details")


def http_status(error: ServingError) -> int:
    return HTTP_STATUS[error.kind].code


def error_body(error: ServingError) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}` as JSON."""
    return msgspec.json.encode(
        {
            "error": {
                "message": bounded(error.message),
                "type": HTTP_STATUS[error.kind].openai_type,
                "param": error.field,
                "code": error.code,
            }
        }
    )


def error_headers(error: ServingError) -> list[tuple[bytes, bytes]]:
    """Retry-After, for the errors that time heals; for the others that need it, how to do better.

    OpenAI's and Anthropic's clients try every 500 again unless they are told not to.
    """
    if error.code == WORKERS_LOST:
        return [(b"x-should-retry", b"false")]
    if error.kind is ErrorKind.UNAUTHENTICATED:
        return [(b"www-authenticate", b"Bearer")]
    return [] if error.retry_after_s is None else [(b"retry-after", b"%d" % error.retry_after_s)]


def bounded(message: str) -> str:
    """A template may put a client's whole message into its error; half a surrogate pair has no JSON."""
    cut = message if len(message) <= MAX_MESSAGE_CHARACTERS else f"{message[:MAX_MESSAGE_CHARACTERS]} …"
    return cut.encode("utf-8", "replace").decode()

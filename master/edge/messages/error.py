"""Errors in Anthropic's form: https://docs.anthropic.com/en/api/errors"""

import msgspec

from master.edge.http.errors import bounded
from master.errors import ErrorKind, ServingError

ERROR_TYPES = {
    ErrorKind.INVALID_REQUEST: "invalid_request_error",
    ErrorKind.UNAUTHENTICATED: "authentication_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.METHOD_NOT_ALLOWED: "invalid_request_error",
    ErrorKind.BODY_TOO_LARGE: "request_too_large",
    ErrorKind.UNSUPPORTED_MEDIA_TYPE: "invalid_request_error",
    ErrorKind.OVERLOADED: "rate_limit_error",
    ErrorKind.CANCELLED: "api_error",
    ErrorKind.INTERNAL: "api_error",
    ErrorKind.UNAVAILABLE: "overloaded_error",
    ErrorKind.DEADLINE_EXCEEDED: "timeout_error",
}
assert set(ERROR_TYPES) == set(ErrorKind)


def messages_error_body(error: ServingError) -> bytes:
    """`{"type": "error", "error": {"type", "message"}}` as JSON."""
    told = {"type": ERROR_TYPES[error.kind], "message": bounded(error.message)}
    return msgspec.json.encode({"type": "error", "error": told})

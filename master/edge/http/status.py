"""What each kind of error is called over HTTP."""

from dataclasses import dataclass

from master.errors import ErrorKind


@dataclass(frozen=True, slots=True)
class HttpStatus:
    """`openai_type` is the `type` of OpenAI's error object."""

    code: int
    openai_type: str


HTTP_STATUS = {
    ErrorKind.INVALID_REQUEST: HttpStatus(400, "invalid_request_error"),
    ErrorKind.UNAUTHENTICATED: HttpStatus(401, "authentication_error"),
    ErrorKind.NOT_FOUND: HttpStatus(404, "invalid_request_error"),
    ErrorKind.METHOD_NOT_ALLOWED: HttpStatus(405, "invalid_request_error"),
    ErrorKind.BODY_TOO_LARGE: HttpStatus(413, "invalid_request_error"),
    ErrorKind.UNSUPPORTED_MEDIA_TYPE: HttpStatus(415, "invalid_request_error"),
    ErrorKind.OVERLOADED: HttpStatus(429, "rate_limit_error"),
    ErrorKind.CANCELLED: HttpStatus(499, "cancelled_error"),
    ErrorKind.INTERNAL: HttpStatus(500, "server_error"),
    ErrorKind.UNAVAILABLE: HttpStatus(503, "unavailable_error"),
    ErrorKind.DEADLINE_EXCEEDED: HttpStatus(504, "timeout_error"),
}
assert set(HTTP_STATUS) == set(ErrorKind)

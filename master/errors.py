"""The master's one family of errors. Each keeps its meaning from where it occurs to the client, HTTP and gRPC alike."""

from enum import Enum


class ErrorKind(Enum):
    """What went wrong, in the client's terms; each edge has its table of codes, in a file called status."""

    INVALID_REQUEST = "invalid_request_error"
    UNAUTHENTICATED = "authentication_error"
    NOT_FOUND = "not_found_error"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    OVERLOADED = "rate_limit_error"
    UNAVAILABLE = "unavailable_error"
    DEADLINE_EXCEEDED = "timeout_error"
    CANCELLED = "cancelled_error"
    INTERNAL = "internal_error"


WORKERS_LOST = "workers_lost"
"""The code of an error that must not be tried again, though others of its kind may: it would cost more workers."""


# Where the error itself does not know better when to come back.
DEFAULT_RETRY_AFTER_S = {ErrorKind.OVERLOADED: 1, ErrorKind.UNAVAILABLE: 1}


class ServingError(Exception):
    """An error a client is told about.

    `field` names the request's field that is wrong; `code` is OpenAI's machine-readable word (such as
    `context_length_exceeded`); `retry_after_s` is set where trying again later makes sense.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        field: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.field = field
        self.code = code
        self.retry_after_s = DEFAULT_RETRY_AFTER_S.get(kind) if retry_after_s is None else retry_after_s


def invalid(field: str | None, message: str, *, code: str | None = None) -> ServingError:
    """A request that can never succeed as it stands; `message` should name the value and what is allowed."""
    return ServingError(ErrorKind.INVALID_REQUEST, message, field=field, code=code)

"""What a call can fail with: one family, by what the caller can do about it.

`master.edge.grpc.status` is the other end.
"""

import grpc


class PdserveError(Exception):
    """Any failure of a call. `code` is OpenAI's machine-readable word for it, such as `context_length_exceeded`."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class InvalidRequest(PdserveError):
    """It can never succeed as it stands. `field` is the option or argument that is wrong, where there is one."""

    def __init__(self, message: str, *, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.field = field


class TooLarge(InvalidRequest):
    """The request, or its response, is larger than the 64 MiB that either side takes."""


class NotFound(PdserveError):
    """There is no such thing, such as a model that is not served."""


class Unauthenticated(PdserveError):
    pass


class TryLater(PdserveError):
    """The same request may succeed in `retry_after_s` seconds, where that is known."""

    def __init__(self, message: str, *, code: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class Overloaded(TryLater):
    """Queues are full."""


class Unavailable(TryLater):
    """The master can't be reached, or has no workers for the request."""


class DeadlineExceeded(PdserveError):
    pass


class Cancelled(PdserveError):
    """The call was cancelled, here or by a server that is shutting down."""


class InternalError(PdserveError):
    """A fault of the server, or a server that is no pdserve master of this version."""


def error_of(failure: grpc.RpcError) -> PdserveError:
    """The exception for a failed call, blocking or asyncio, with what the server has said about it."""
    # pairs, which grpc-stubs does not know; None when no server has answered
    metadata: dict[str, str | bytes] = dict(failure.trailing_metadata() or ())  # type: ignore[arg-type]
    message = failure.details() or failure.code().name
    code = _text(metadata.get("pdserve-code"))
    retry_after_s = _seconds(metadata.get("retry-after-s"))
    match failure.code():
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.OUT_OF_RANGE:
            return InvalidRequest(message, field=_text(metadata.get("pdserve-field")), code=code)
        case grpc.StatusCode.NOT_FOUND:
            return NotFound(message, code=code)
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return Unauthenticated(message, code=code)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in message:  # gRPC's own, from either side
            return TooLarge(f"a message of the call is too large: {message}", code=code)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(message, code=code, retry_after_s=retry_after_s)
        case grpc.StatusCode.UNAVAILABLE:
            return Unavailable(message, code=code, retry_after_s=retry_after_s)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(message, code=code)
        case grpc.StatusCode.CANCELLED:
            return Cancelled(message, code=code)
        case _:
            return InternalError(f"{failure.code().name}: {message}", code=code)


def _text(value: str | bytes | None) -> str | None:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def _seconds(value: str | bytes | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None

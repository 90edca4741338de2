"""Errors to gRPC status codes: the one table of this side. `client.errors` reads them back.

The details carry the message; trailing metadata carries what else a client can act on: `pdserve-field` (the request's
field that is wrong), `pdserve-code` (OpenAI's machine-readable word) and `retry-after-s`.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from master.edge.slow_reader import SlowReader
from master.errors import ErrorKind, ServingError

logger = logging.getLogger(__name__)

STATUS_CODES = {
    ErrorKind.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorKind.BODY_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.UNSUPPORTED_MEDIA_TYPE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.METHOD_NOT_ALLOWED: grpc.StatusCode.UNIMPLEMENTED,
    ErrorKind.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorKind.CANCELLED: grpc.StatusCode.CANCELLED,
    ErrorKind.INTERNAL: grpc.StatusCode.INTERNAL,
}

# Peers drop responses whose trailers exceed 8 KiB, and percent-encoding may triple the message.
MAX_DETAILS_BYTES = 2000

Context = grpc.aio.ServicerContext[Any, Any]


@asynccontextmanager
async def answering(context: Context) -> AsyncIterator[None]:
    """The outer edge of every handler: ends the call with the status of whatever was raised inside."""
    try:
        yield
    except ServingError as error:
        await context.abort(STATUS_CODES[error.kind], details(error.message), trailing_metadata(error))
    except SlowReader as error:
        logger.info("%s: its client %s reads nothing and is cut", error, context.peer())
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the answer was not read")
    except Exception:
        if context.done():  # writing to a client that has just left fails in several ways
            raise
        logger.exception("a gRPC call from %s failed", context.peer())
        await context.abort(grpc.StatusCode.INTERNAL, "internal error; the master's log has its traceback")


def details(message: str) -> str:
    """The message, cut to what surely fits into the trailers."""
    encoded = message.encode("utf-8", "backslashreplace")
    if len(encoded) <= MAX_DETAILS_BYTES:
        return encoded.decode()
    return encoded[:MAX_DETAILS_BYTES].decode(errors="ignore") + " …"


def trailing_metadata(error: ServingError) -> tuple[tuple[str, str], ...]:
    """Metadata values are printable ASCII, so anything else is escaped."""
    values = {"pdserve-field": error.field, "pdserve-code": error.code, "retry-after-s": error.retry_after_s}
    return tuple(
        (key, str(value).encode("unicode_escape").decode("ascii")) for key, value in values.items() if value is not None
    )

"""A request's body, read within limits."""

import asyncio
import codecs
import re
from typing import TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from master.edge.http.config import HttpConfig
from master.edge.http.disconnect import ClientGone
from master.edge.http.response import HttpResponse
from master.errors import ErrorKind, ServingError, invalid

Body = TypeVar("Body", bound=msgspec.Struct)

JSON_MEDIA_TYPE = re.compile(r"application/([a-z0-9.+-]+\+)?json", re.IGNORECASE)
SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
MAX_VALUES = 1 << 19
MAX_ESCAPES = 1 << 21
PATH_SUFFIX = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*)`$")


async def read_body(scope: Scope, receive: Receive, config: HttpConfig) -> bytes:
    """The whole body, never holding more than `config.max_body_bytes`.

    Raises ServingError UNSUPPORTED_MEDIA_TYPE unless the headers say JSON or nothing, BODY_TOO_LARGE, or
    INVALID_REQUEST when it does not arrive in time; ClientGone.
    """
    headers = Headers(scope=scope)
    _check_media_type(headers)
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > config.max_body_bytes:
        raise _too_large(config.max_body_bytes)
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(config.body_timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part: bytes = message.get("body", b"")
                num_bytes += len(part)
                if num_bytes > config.max_body_bytes:
                    raise _too_large(config.max_body_bytes)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError as error:
        raise invalid(None, f"the body did not arrive within {config.body_timeout_s} seconds") from error


async def read_or_refuse(scope: Scope, receive: Receive, config: HttpConfig, response: HttpResponse) -> bytes | None:
    """`read_body`, or None when the client has been told why not. Raises ClientGone, SlowReader."""
    try:
        return await read_body(scope, receive, config)
    except ServingError as error:
        await response.refuse_body(error, receive)
        return None


def decode_body(body: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    """Raises ServingError INVALID_REQUEST, naming the field that has the wrong type.

    Decoding lets nothing else run, so what has more values or escapes than can be decoded in milliseconds
    is refused.
    """
    if body.count(b",") > MAX_VALUES:
        raise invalid(None, f"the body has more than {MAX_VALUES} values, or commas in its texts")
    if body.count(b"\\") > MAX_ESCAPES:
        raise invalid(None, f"the body has more than {MAX_ESCAPES} backslashes; send UTF-8 without \\u escapes")
    try:
        return decoder.decode(body.removeprefix(codecs.BOM_UTF8))
    except msgspec.ValidationError as error:
        message = str(error)
        path = PATH_SUFFIX.search(message)
        raise invalid(path[1][:200] or None if path else None, message[:1000]) from error
    except msgspec.DecodeError as error:
        hint = ", or a \\u escape is half of a surrogate pair" if SURROGATE_ESCAPE.search(body) else ""
        raise invalid(None, f"the body is not valid JSON: {error}{hint}") from error
    except RecursionError as error:
        raise invalid(None, "the body is nested too deep") from error


def _check_media_type(headers: Headers) -> None:
    media_type = headers.get("content-type", "application/json").partition(";")[0].strip()
    if not JSON_MEDIA_TYPE.fullmatch(media_type):
        raise ServingError(
            ErrorKind.UNSUPPORTED_MEDIA_TYPE, f"content-type is {media_type[:100]!r}; it must be application/json"
        )
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ServingError(
            ErrorKind.UNSUPPORTED_MEDIA_TYPE, f"content-encoding is {encoding[:100]!r}; send the body as it is"
        )


def _too_large(max_bytes: int) -> ServingError:
    return ServingError(ErrorKind.BODY_TOO_LARGE, f"the body is larger than {max_bytes} bytes")

"""Cross-origin requests of browsers: https://fetch.spec.whatwg.org/#http-cors-protocol

Starlette's middleware would run once for each event of a stream; here only the start of a response is touched.
"""

from collections.abc import Sequence

from starlette.types import Message, Scope, Send

ANY_ORIGIN = "*"
MAX_AGE_S = 600  # for which a browser need not ask again

Header = tuple[bytes, bytes]

# In the scope: headers that a response must have besides its own.
EXTRA_HEADERS = "pdserve.extra_headers"


class Cors:
    """`origins` may read answers; `*` among them means all. Cookies are not used here, so they are never allowed."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._is_open = ANY_ORIGIN in origins

    async def answer_preflight(self, scope: Scope, send: Send) -> bool:
        """Whether the request only asked what it may do, and has its answer. Else the answer to come is prepared."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        origin = headers.get(b"origin")
        if origin is None:
            return False
        is_allowed = self._is_open or origin in self._origins
        extra = self._headers(origin) if is_allowed else [(b"vary", b"origin")]
        if scope["method"] != "OPTIONS" or b"access-control-request-method" not in headers:
            scope[EXTRA_HEADERS] = extra
            return False
        if is_allowed:
            extra += [
                (b"access-control-allow-methods", b"GET, POST"),
                (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"*")),
                (b"access-control-max-age", b"%d" % MAX_AGE_S),
            ]
        start: Message = {"type": "http.response.start", "status": 204 if is_allowed else 403, "headers": extra}
        await send(start)
        await send({"type": "http.response.body", "body": b""})
        return True

    def _headers(self, origin: bytes) -> list[Header]:
        exposed = (b"access-control-expose-headers", b"x-request-id, retry-after")
        if self._is_open:
            return [(b"access-control-allow-origin", b"*"), exposed]
        return [(b"access-control-allow-origin", origin), exposed, (b"vary", b"origin")]

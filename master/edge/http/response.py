"""One HTTP response: a whole body, or a stream of server-sent events.

Life: nothing sent → headers and a whole body; or headers → events → last events. An error becomes a whole response
as long as nothing has been sent, and the stream's last events afterwards.
"""

import asyncio
import re
from collections.abc import Callable, Sequence

from starlette.types import Message, Receive, Scope, Send

from master.edge.http import sse
from master.edge.http.cors import EXTRA_HEADERS
from master.edge.http.errors import ErrorBody, error_headers, http_status
from master.edge.slow_reader import SlowReader
from master.errors import ServingError

REQUEST_ID_HEADER = b"x-request-id"
SAFE_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
JSON_HEADER = (b"content-type", b"application/json")
# How long the rest of a refused body is read and dropped, since closing sooner would lose the answer on its way.
LINGER_S = 10.0

Header = tuple[bytes, bytes]


class HttpResponse:
    def __init__(self, scope: Scope, send: Send, slow_reader_timeout_s: float, error_body: ErrorBody) -> None:
        self._scope = scope
        self._send = send
        self._slow_reader_timeout_s = slow_reader_timeout_s
        self._takes_more: Callable[[], bool] = scope.get("state", {}).get("takes_more", _is_unknown)
        self._error_body = error_body
        self._request_id = _client_request_id(scope)
        self.status: int | None = None  # once headers are sent
        self.is_complete = False
        self._error: ServingError | None = None

    @property
    def final_status(self) -> int | None:
        """The status of a response that was completed; None if the client left or was cut before.

        A stream that ended in an error has that error's, though its headers said 200.
        """
        if not self.is_complete:
            return None
        return self.status if self._error is None else http_status(self._error)

    @property
    def client_request_id(self) -> str | None:
        """What the client calls its request by the header X-Request-Id."""
        return None if self._request_id is None else self._request_id.decode("ascii")

    def name(self, request_id: str) -> None:
        """The X-Request-Id to answer with where the client gave none."""
        self._request_id = self._request_id or request_id.encode("ascii")

    async def start_stream(self) -> None:
        self._scope.get("state", {})["filler"] = sse.FILLER
        await self._start(200, sse.HEADERS)

    async def write(self, events: bytes) -> None:
        """Raises SlowReader."""
        await self._put({"type": "http.response.body", "body": events, "more_body": True})

    async def end_stream(self, events: bytes, error: ServingError | None = None) -> None:
        """`error` is what the stream ended in, if it did. Raises SlowReader."""
        self._error = error
        await self._end(events)

    async def whole(self, status: int, json_text: bytes, headers: Sequence[Header] = ()) -> None:
        """Raises SlowReader."""
        await self._start(status, [JSON_HEADER, (b"content-length", b"%d" % len(json_text)), *headers])
        await self._end(json_text)

    async def fail(self, error: ServingError) -> None:
        """Only while nothing has been sent: a stream ends with events of its own. Raises SlowReader."""
        await self.whole(http_status(error), self._error_body(error), error_headers(error))

    async def refuse_body(self, error: ServingError, receive: Receive) -> None:
        """`fail` for a request whose body has not been read to its end; closes the connection. Raises SlowReader."""
        body = self._error_body(error)
        length = (b"content-length", b"%d" % len(body))
        headers = [JSON_HEADER, length, (b"connection", b"close"), *error_headers(error)]
        await self._start(http_status(error), headers)
        await self.write(body)
        try:
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        except TimeoutError:
            pass  # it had its time
        await self._end(b"")

    def abort(self) -> None:
        """Drop the connection and what is still buffered for it; a server without that way closes it on return."""
        abort = self._scope.get("state", {}).get("abort")
        if abort is not None:
            abort()

    async def _start(self, status: int, headers: Sequence[Header]) -> None:
        identity = [(REQUEST_ID_HEADER, self._request_id)] if self._request_id is not None else []
        extra: Sequence[Header] = self._scope.get(EXTRA_HEADERS, ())
        self.status = status
        await self._put({"type": "http.response.start", "status": status, "headers": [*headers, *identity, *extra]})

    async def _end(self, body: bytes) -> None:
        self.is_complete = True
        await self._put({"type": "http.response.body", "body": body, "more_body": False})

    async def _put(self, message: Message) -> None:
        if self._takes_more():
            await self._send(message)  # does not wait, so it needs no timer
            return
        try:
            async with asyncio.timeout(self._slow_reader_timeout_s):
                await self._send(message)
        except TimeoutError as error:
            raise SlowReader from error


def _is_unknown() -> bool:
    """A server that does not say whether its connection takes more may have to wait with anything."""
    return False


def _client_request_id(scope: Scope) -> bytes | None:
    """What the client calls its request, if that can stand in a header."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID_HEADER and SAFE_REQUEST_ID.fullmatch(value):
            return bytes(value)
    return None

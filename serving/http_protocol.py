"""One HTTP connection: uvicorn's protocol, with the limits and the courtesies it lacks.

An application finds under `scope["state"]["abort"]` how to drop the connection with what is buffered for it, and under
"takes_more" whether it takes a part of the body without waiting for the client. It says under "filler" which bytes mean
nothing between the parts of the body that it streams.
"""

import asyncio

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from serving.stray_bytes import StrayBytes

HEADERS_TIMEOUT_S = 30.0
MAX_HEADERS_BYTES = 64 * 1024
# How often a client that will send no more is asked whether it still reads.
PROBE_S = 0.5
PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
UPGRADE_TOKENS = (b"upgrade", b"http2-settings")


class ConnectionsState(ServerState):
    """What all connections of a server share."""

    def __init__(self) -> None:
        super().__init__()
        self.is_leaving = False  # connections close with their next answer
        self.stray_bytes = StrayBytes()


class HttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request's headers do not arrive in time, or are too long.

    An offer to upgrade to another protocol is ignored, as RFC 9110, 7.8 allows. A client that has closed its side of
    the connection after its request still gets its answer; one that has left for good answers a probe with a reset.
    """

    def __init__(
        self,
        config: Config,
        server_state: ConnectionsState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._state = server_state
        self._headers_timer: asyncio.TimerHandle | None = None
        self._headers_bytes = 0
        self._probe_timer: asyncio.TimerHandle | None = None  # set once the client will send no more
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_of_headers()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        num_bytes = len(data)
        while data:
            try:
                self.parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as upgrade:
                if self.parser.get_method() == b"CONNECT":
                    self._refuse(data, "This is no proxy.")
                    return
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
            except httptools.HttpParserError:
                self._refuse(data, "Invalid HTTP request received.")
                return
        self._limit_headers(num_bytes)

    def eof_received(self) -> bool | None:  # type: ignore[override]  # asyncio keeps the connection for True
        """TLS has no half of a connection, and one without a request has nothing more to say."""
        is_answering = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if self.scheme == "https" or not is_answering:
            return None
        self._probe_timer = self.loop.call_later(PROBE_S, self._probe)
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["abort"] = self.transport.abort
        self.scope["state"]["takes_more"] = self._takes_more
        self._await_headers()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the head comes once more, without the offer
        self._end_of_headers()
        super().on_headers_complete()
        root_path = self.config.root_path
        self.scope["path"] = _without_prefix(self.scope["path"], 2 * root_path, root_path)
        if self._state.is_leaving:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._probe_timer is not None and not self.pipeline and self.cycle.response_complete:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        is_old = cycle.scope["http_version"] == "1.0"
        super()._start_asgi_task(cycle, _UntilClose(app, cycle) if is_old else app)  # type: ignore[arg-type]

    def _head_without_upgrade(self) -> bytes:
        """The head of the request that was just read, in which nobody offers another protocol."""
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token.lower() not in UPGRADE_TOKENS)
            if name not in UPGRADE_TOKENS:
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self, data: bytes, message: str) -> None:
        self._state.stray_bytes.note(self.client[0] if self.client else "a local client", data)
        self.send_400_response(message)

    def _limit_headers(self, num_bytes: int) -> None:
        if self._headers_timer is None:
            return
        self._headers_bytes += num_bytes
        if self._headers_bytes > MAX_HEADERS_BYTES:
            self.send_400_response("The request's headers are too long.")

    def _await_headers(self) -> None:
        if self._headers_timer is None:
            self._headers_timer = self.loop.call_later(HEADERS_TIMEOUT_S, self._abort)
            self._headers_bytes = 0

    def _end_of_headers(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _probe(self) -> None:
        """A client that has closed its socket looks like one that has only said all it has to, until it is written to;
        bytes that every client has to skip make its system answer with a reset."""
        filler = self.cycle.scope["state"].get("filler", b"")
        if not self.cycle.response_started:
            self.transport.write(PROBE if self.cycle.scope["http_version"] == "1.1" else b"")
        elif filler:
            self.transport.write(b"%x\r\n%s\r\n" % (len(filler), filler) if self.cycle.chunked_encoding else filler)
        self._probe_timer = self.loop.call_later(PROBE_S, self._probe)

    def _takes_more(self) -> bool:
        return not self.flow.write_paused

    def _abort(self) -> None:
        self.transport.abort()


class _UntilClose:
    """Answers a client of HTTP/1.0, which knows no chunks: a body of unknown length ends with the connection."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_length = False

        async def send_unchunked(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                if not has_length:
                    self._cycle.chunked_encoding = False
            elif not has_length:
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_unchunked)


def _without_prefix(path: str, *prefixes: str) -> str:
    for prefix in prefixes:
        if prefix and path.startswith(f"{prefix}/"):
            return path.removeprefix(prefix)
    return path

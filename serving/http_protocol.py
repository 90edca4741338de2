"""One HTTP connection: uvicorn's protocol, with the limits it lacks."""

import asyncio

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

HEADERS_TIMEOUT_S = 30.0
MAX_HEADERS_BYTES = 64 * 1024


class ConnectionsState(ServerState):
    """What all connections of a server share."""

    def __init__(self) -> None:
        super().__init__()
        self.is_leaving = False  # connections close with their next answer


class HttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request's headers do not arrive in time, or are too long.

    An application finds under `scope["state"]["abort"]` how to drop the connection with what is buffered for it.
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
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_of_headers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._headers_timer is None:
            return
        self._headers_bytes += len(data)
        if self._headers_bytes > MAX_HEADERS_BYTES:
            self.send_400_response("The request's headers are too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["abort"] = self.transport.abort
        self._await_headers()

    def on_headers_complete(self) -> None:
        self._end_of_headers()
        super().on_headers_complete()
        if self._state.is_leaving and self.cycle is not None:
            self.cycle.keep_alive = False

    def _await_headers(self) -> None:
        if self._headers_timer is None:
            self._headers_timer = self.loop.call_later(HEADERS_TIMEOUT_S, self._abort)
            self._headers_bytes = 0

    def _abort(self) -> None:
        self.transport.abort()

    def _end_of_headers(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

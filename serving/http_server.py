"""The HTTP server of a process: uvicorn inside the process's own event loop.

Life: bind (the port is known, but nobody can connect) → start → leave: every answer says that its connection closes,
so that clients go elsewhere → stop: no new connections; those in use end with their answers; at the deadline they are
dropped.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from config.address import join_host_port
from serving.http_listener import bind_path, bind_port, named
from serving.http_protocol import ConnectionsState, HttpProtocol

BACKLOG = 2048
# Balancers commonly keep idle connections for 60 s; whoever closes first must not be the one without requests to send.
KEEP_ALIVE_S = 75
# Requests whose connections were dropped get so long to close what they hold.
DROP_S = 2.0


class HttpServer:
    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        uds: Path | None = None,
        tls: ssl.SSLContext | None = None,
        root_path: str = "",
        keep_alive_s: int = KEEP_ALIVE_S,
    ) -> None:
        """`host` is a name, IPv4 or IPv6 without brackets; port 0 takes a free one; `uds` is served instead of both.

        Requests may come with or without `root_path`, the prefix that a proxy before this server serves it under.
        """
        self._tls = tls
        self._host = host
        self._wanted_port = port
        self._uds = uds
        self._server = _Server(
            uvicorn.Config(
                app,
                loop="none",
                http=HttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                root_path=root_path,
                timeout_keep_alive=keep_alive_s,
            )
        )
        self._serving: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None
        self._port: int | None = None

    @property
    def port(self) -> int:
        """What was bound."""
        assert self._port is not None, "no port was bound"
        return self._port

    def address(self, host: str) -> str:
        """Where it is reached by those who know this machine as `host`."""
        return f"unix:{self._uds.resolve()}" if self._uds is not None else join_host_port(host, self.port)

    @property
    def url(self) -> str:
        if self._uds is not None:
            return self.address(self._host)
        return f"{'http' if self._tls is None else 'https'}://{self.address(self._host)}"

    async def bind(self) -> None:
        """Raises OSError, naming the address, if it can't be had."""
        if self._uds is not None:
            self._listener = bind_path(self._uds)
        else:
            self._listener = await bind_port(self._host, self._wanted_port)
            self._port = self._listener.getsockname()[1]

    async def start(self) -> None:
        """Binds if `bind` has not; returns once clients can connect. Raises OSError as `bind` does."""
        if self._listener is None:
            await self.bind()
        assert self._listener is not None
        try:
            self._listener.listen(BACKLOG)
        except OSError as error:
            raise named(error, self.address(self._host)) from error
        self._server.config.load()
        self._server.config.ssl = self._tls  # which uvicorn makes of files, once
        self._serving = asyncio.create_task(self._server.serve([self._listener]), name="http server")
        started = asyncio.create_task(self._server.has_started.wait())
        await asyncio.wait({self._serving, started}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._serving.done():
            await self._serving

    def leave(self) -> None:
        """Connections close with their next answer from now on."""
        self._server.server_state.is_leaving = True

    async def stop(self, deadline_s: float | None) -> None:
        """Returns within the deadline and a little more, with nothing left running. May be called again."""
        if (serving := self._serving) is not None:
            self._server.should_exit = True
            await asyncio.wait({serving}, timeout=deadline_s)
            if not serving.done():
                await self._drop_connections()
            self._serving = None
            await serving
        if self._listener is not None:
            self._listener.close()
            if self._uds is not None:
                self._uds.unlink(missing_ok=True)

    async def _drop_connections(self) -> None:
        state = self._server.server_state
        for connection in list(state.connections):
            connection.transport.abort()
        requests = set(state.tasks)
        if requests:
            _, unfinished = await asyncio.wait(requests, timeout=DROP_S)
            for task in unfinished:
                task.cancel()
        self._server.force_exit = True


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state: ConnectionsState = ConnectionsState()
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process, which has more than this to stop."""
        yield

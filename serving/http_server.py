"""The HTTP server of a process: uvicorn inside the process's own event loop.

Life: bind (the port is known and clients may connect) → serve → stop: no new connections; those in use end with
their answers; at the deadline they are dropped.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from config.address import join_host_port
from serving.http_protocol import HttpProtocol

BACKLOG = 2048
KEEP_ALIVE_S = 30
RESOLVE_S = 10.0
# For requests to close what they hold, once their connections are dropped.
DROP_S = 2.0


class HttpServer:
    def __init__(self, app: ASGIApp, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """`host` is a name, IPv4 or IPv6 without brackets; port 0 takes a free one."""
        self._tls = tls
        self._host = host
        self._wanted_port = port
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
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self._serving: asyncio.Task[None] | None = None
        self._port: int | None = None

    @property
    def port(self) -> int:
        """What was bound."""
        assert self._port is not None, "the server was not started"
        return self._port

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{join_host_port(self._host, self.port)}"

    async def start(self) -> None:
        """Returns once clients can connect. Raises OSError, naming the address, if it cannot be bound."""
        listener = await _bind(self._host, self._wanted_port)
        self._server.config.load()
        self._server.config.ssl = self._tls  # which uvicorn makes of files, once
        self._port = listener.getsockname()[1]
        self._serving = asyncio.create_task(self._server.serve([listener]), name="http server")
        started = asyncio.create_task(self._server.has_started.wait())
        await asyncio.wait({self._serving, started}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._serving.done():
            listener.close()
            await self._serving

    async def stop(self, deadline_s: float) -> None:
        """Returns within the deadline and a little more, with nothing left running. May be called again."""
        if self._serving is None:
            return
        self._server.should_exit = True
        await asyncio.wait({self._serving}, timeout=deadline_s)
        if not self._serving.done():
            await self._drop_connections()
        serving, self._serving = self._serving, None
        await serving

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
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process, which has more than this to stop."""
        yield


async def _bind(host: str, port: int) -> socket.socket:
    address = join_host_port(host, port)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except TimeoutError as error:
        raise OSError(f"http address {address}: its name was not resolved within {RESOLVE_S} s") from error
    except OSError as error:
        raise OSError(error.errno, f"http address {address}: {error.strerror}") from error
    family, kind, protocol, _, where = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # the wildcard takes IPv4 as well, whatever the system's default
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        listener.bind(where)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"http address {address}: {error.strerror}") from error
    return listener

"""An ASGI app on uvicorn, inside the process's own event loop and on a socket bound beforehand."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from uvicorn._types import ASGIApplication


class HttpServer:
    """`start`, then `port`, then `close`, once each."""

    def __init__(self, app: "ASGIApplication", host: str, port: int, *, close_timeout_s: float = 2.0) -> None:
        """Port 0 takes a free one. Requests still open `close_timeout_s` after `close` are cut."""
        self._host = host
        self._wanted_port = port
        config = uvicorn.Config(
            app,
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(close_timeout_s)),
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self) -> None:
        """Raises OSError when the address can't be had."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.create_server((self._host, self._wanted_port), family=family, backlog=1024)
        self.port = listening.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]), name="http server")
        await self._server.is_serving.wait()

    async def close(self) -> None:
        """Harmless before `start`."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task


class _Server(uvicorn.Server):
    """uvicorn's, but signals stay the process's business, and starting is an event."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_serving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.is_serving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

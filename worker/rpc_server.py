"""The worker's gRPC port: sessions with masters, the standard health service and reflection."""

import asyncio
import contextlib
from collections.abc import Callable

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as grpc_health  # type: ignore[attr-defined]  # made at import
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from config.address import join_host_port
from protos import session_pb2
from protos.session_pb2_grpc import add_WorkerServicer_to_server
from worker.session_service import SessionService

MESSAGE_LIMIT_BYTES = 64 << 20
HEALTH_INTERVAL_S = 0.5

SERVICE_NAME: str = session_pb2.DESCRIPTOR.services_by_name["Worker"].full_name
HEALTH_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # else a second worker binds the same port and takes half the sessions
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


class RpcServer:
    """`start`, then `port`, then `close`."""

    def __init__(self, sessions: SessionService, not_ready_reason: Callable[[], str | None]) -> None:
        self._sessions = sessions
        self._not_ready_reason = not_ready_reason
        self._health = grpc_health.HealthServicer()
        self._health_task: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one. Raises OSError when the address can't be had."""
        self._server = grpc.aio.server(options=_OPTIONS)
        add_WorkerServicer_to_server(self._sessions, self._server)
        add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE_NAME, HEALTH_NAME, reflection.SERVICE_NAME), self._server)
        try:
            self.port = self._server.add_insecure_port(join_host_port(host, port))
        except RuntimeError as error:
            raise OSError(f"cannot bind {join_host_port(host, port)}: in use, or not an address here") from error
        await self._server.start()
        self._health_task = asyncio.create_task(self._follow_health(), name="grpc health")

    async def close(self, grace_s: float) -> None:
        """Ends sessions after `grace_s`."""
        if self._health_task is not None:
            self._health_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._health_task
        await self._server.stop(grace_s)

    async def _follow_health(self) -> None:
        statuses = health_pb2.HealthCheckResponse
        while True:
            is_ready = self._not_ready_reason() is None
            status = statuses.SERVING if is_ready else statuses.NOT_SERVING
            for name in ("", SERVICE_NAME):
                await self._health.set(name, status)
            await asyncio.sleep(HEALTH_INTERVAL_S)

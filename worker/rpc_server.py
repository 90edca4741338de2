"""The worker's gRPC port: sessions with masters, the standard health service and reflection."""

from collections.abc import Callable

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from config.address import join_host_port
from protos import session_pb2
from protos.session_pb2_grpc import add_WorkerServicer_to_server
from serving.grpc_guard import GrpcGuard
from serving.grpc_health import HealthService
from serving.keys import Keys
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

    def __init__(
        self,
        sessions: SessionService,
        not_ready_reason: Callable[[], str | None],
        *,
        keys: Keys | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """With `keys` only masters that present one get a session."""
        self._sessions = sessions
        self._keys = keys
        self._credentials = credentials
        self._health = HealthService(not_ready_reason, (SERVICE_NAME,), HEALTH_INTERVAL_S)
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one. Raises OSError when the address can't be had."""
        guards = [] if self._keys is None else [GrpcGuard(self._keys, "cluster token")]
        self._server = grpc.aio.server(interceptors=guards, options=_OPTIONS)
        add_WorkerServicer_to_server(self._sessions, self._server)
        add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE_NAME, HEALTH_NAME, reflection.SERVICE_NAME), self._server)
        try:
            address = join_host_port(host, port)
            if self._credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise OSError(f"cannot bind {join_host_port(host, port)}: in use, or not an address here") from error
        await self._server.start()

    async def close(self, grace_s: float) -> None:
        """Ends sessions after `grace_s`."""
        self._health.close()
        await self._server.stop(grace_s)

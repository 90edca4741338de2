"""The gRPC server of a process: its own services, the standard health service and reflection."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from config.address import Address
from config.name_service import look_up
from serving.grpc_guard import GrpcGuard
from serving.grpc_health import HealthService
from serving.grpc_reflection import add_reflection

MESSAGE_LIMIT_BYTES = 64 << 20
RESOLVE_S = 10.0
HEALTH_INTERVAL_S = 0.5  # how often watchers of the health service are looked after
HEALTH_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

Options = Sequence[tuple[str, int]]
OPTIONS: Options = (
    ("grpc.so_reuseport", 0),  # else a second process binds the same port and takes half the calls
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    # Clients may ping every 10 s, with or without a call; half of that leaves room for jitter.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


@dataclass(frozen=True, slots=True)
class GrpcService:
    """What a process offers: the service's full name, and what adds it to a server."""

    name: str
    add_to: Callable[[grpc.aio.Server], None]


class GrpcServer:
    """`bind` if the port is to be known before it is served, `start`, then `close`, once each."""

    def __init__(
        self,
        services: Sequence[GrpcService],
        not_ready_reason: Callable[[], str | None],
        wanted: Address,
        *,
        guard: GrpcGuard | None = None,
        credentials: grpc.ServerCredentials | None = None,
        options: Options = (),
        health_interval_s: float = HEALTH_INTERVAL_S,
    ) -> None:
        """Port 0 takes a free one. The guard stands before all but health and reflection."""
        self._services = services
        self._wanted = wanted
        self._guard = guard
        self._credentials = credentials
        self._options = (*OPTIONS, *options)
        self._health = HealthService(not_ready_reason, [service.name for service in services], health_interval_s)
        self._server: grpc.aio.Server | None = None
        self._address: Address | None = None

    async def bind(self) -> None:
        """Calls that come from now on wait for `start`. Raises OSError saying which address it was and why."""
        # gRPC would look the name up by itself, in this thread and for as long as it takes
        found = await look_up(self._wanted.host, self._wanted.port, RESOLVE_S, socket.AI_PASSIVE)
        server = grpc.aio.server(interceptors=[] if self._guard is None else [self._guard], options=self._options)
        for service in self._services:
            service.add_to(server)
        add_HealthServicer_to_server(self._health, server)
        add_reflection([*(service.name for service in self._services), HEALTH_NAME], server)
        port = self._add_port(server, Address(found[0].host, self._wanted.port))
        self._address = Address(self._wanted.host, port)
        self._server = server

    async def start(self) -> None:
        """Binds if `bind` has not, and takes calls."""
        if self._server is None:
            await self.bind()
        assert self._server is not None
        await self._server.start()

    @property
    def address(self) -> Address:
        """What was bound, under the host's name as given."""
        assert self._address is not None, "not bound"
        return self._address

    async def close(self, grace_s: float) -> None:
        """Takes no new calls, lets running ones go on for `grace_s` seconds, then cancels them.

        Harmless when `bind` has failed, and a second time.
        """
        self._health.close()
        if self._server is not None:
            await self._server.stop(grace_s)

    def _add_port(self, server: grpc.aio.Server, address: Address) -> int:
        try:
            if self._credentials is None:
                return server.add_insecure_port(str(address))
            return server.add_secure_port(str(address), self._credentials)
        except RuntimeError as error:
            reason = _bind_error(address)
            raise OSError(reason.errno, f"cannot serve gRPC on {self._wanted}: {reason.strerror or error}") from error


def _bind_error(address: Address) -> OSError:
    """gRPC says only that it failed, so the system is asked why; an empty error when it has nothing against it."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.create_server((address.host, address.port), family=family):
            return OSError()
    except OSError as error:
        return error

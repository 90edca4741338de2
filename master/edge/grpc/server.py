"""The master's gRPC port: Inference, Cluster, the standard health service and reflection."""

import socket

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from config.address import Address
from master.edge.grpc.cluster import Cluster
from master.edge.grpc.inference import Inference
from master.parsing.formats import ParserChoice
from master.service import Service
from protos import cluster_pb2, inference_pb2
from protos.cluster_pb2_grpc import add_ClusterServicer_to_server
from protos.inference_pb2_grpc import add_InferenceServicer_to_server
from serving.grpc_guard import GrpcGuard
from serving.grpc_health import HealthService
from serving.keys import Keys

MESSAGE_LIMIT_BYTES = 64 * 2**20
NO_PARSERS = ParserChoice()

INFERENCE_NAME: str = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
CLUSTER_NAME: str = cluster_pb2.DESCRIPTOR.services_by_name["Cluster"].full_name
HEALTH_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

OPTIONS = (
    ("grpc.so_reuseport", 0),  # else a second master binds the same port and takes half the calls
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    # A silent stream lives as long as its client answers pings, and no longer: a host that vanished frees its blocks.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Clients may ping every 10 s, with or without a call; half of that leaves room for jitter.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


class GrpcServer:
    """`start`, then `address`, then `close`, once each."""

    def __init__(
        self,
        service: Service,
        host: str,
        port: int,
        *,
        credentials: grpc.ServerCredentials | None = None,
        keys: Keys | None = None,
        health_interval_s: float = 0.5,
        parsers: ParserChoice = NO_PARSERS,
    ) -> None:
        """Port 0 takes a free one. With `keys` all but health and reflection needs one of them.

        `health_interval_s` is how often watchers of the health service are looked after;
        `parsers` read what chats are answered with.
        """
        self._service = service
        self._wanted = Address(host, port)
        self._credentials = credentials
        self._keys = keys
        self._parsers = parsers
        self._health = HealthService(service.not_ready_reason, (INFERENCE_NAME, CLUSTER_NAME), health_interval_s)
        self._server: grpc.aio.Server | None = None
        self._address: Address | None = None

    async def start(self) -> None:
        """Raises OSError saying which address could not be bound and why."""
        guards = [] if self._keys is None else [GrpcGuard(self._keys, "API key")]
        server = grpc.aio.server(interceptors=guards, options=OPTIONS)
        add_InferenceServicer_to_server(Inference(self._service, self._parsers), server)
        add_ClusterServicer_to_server(Cluster(self._service), server)
        add_HealthServicer_to_server(self._health, server)
        names = (INFERENCE_NAME, CLUSTER_NAME, HEALTH_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        self._address = Address(self._wanted.host, self._bind(server))
        await server.start()
        self._server = server

    def _bind(self, server: grpc.aio.Server) -> int:
        wanted = str(self._wanted)
        try:
            if self._credentials is None:
                return server.add_insecure_port(wanted)
            return server.add_secure_port(wanted, self._credentials)
        except RuntimeError as error:
            reason = _bind_error(self._wanted)
            raise OSError(reason.errno, f"cannot serve gRPC on {wanted}: {reason.strerror or error}") from error

    @property
    def address(self) -> Address:
        """What was bound, once started."""
        assert self._address is not None, "not started"
        return self._address

    async def close(self, grace_s: float) -> None:
        """Takes no new calls, lets running ones go on for `grace_s` seconds, then cancels them.

        Harmless when `start` has failed.
        """
        self._health.close()
        if self._server is not None:
            await self._server.stop(grace_s)


def _bind_error(address: Address) -> OSError:
    """gRPC says only that it failed, so the system is asked why; an empty error when it has nothing against it."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.create_server((address.host, address.port), family=family):
            return OSError()
    except OSError as error:
        return error

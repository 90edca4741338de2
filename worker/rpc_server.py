"""The worker's gRPC port: sessions with masters."""

from collections.abc import Callable
from functools import partial

import grpc

from config.address import Address
from protos import session_pb2
from protos.session_pb2_grpc import add_WorkerServicer_to_server
from serving.grpc_guard import GrpcGuard
from serving.grpc_server import GrpcServer, GrpcService
from serving.keys import Keys
from worker.session_service import SessionService

SERVICE_NAME: str = session_pb2.DESCRIPTOR.services_by_name["Worker"].full_name


def session_server(
    sessions: SessionService,
    not_ready_reason: Callable[[], str | None],
    host: str,
    port: int,
    *,
    keys: Keys | None = None,
    credentials: grpc.ServerCredentials | None = None,
) -> GrpcServer:
    """With `keys` only masters that present one get a session."""
    return GrpcServer(
        [GrpcService(SERVICE_NAME, partial(add_WorkerServicer_to_server, sessions))],
        not_ready_reason,
        Address(host, port),
        guard=None if keys is None else GrpcGuard(keys, "cluster token"),
        credentials=credentials,
    )

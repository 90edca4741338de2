"""The worker's gRPC port: sessions with masters."""

import logging
from collections.abc import Callable
from functools import partial

import grpc

from config.address import Address
from protos import session_pb2
from protos.session_pb2_grpc import add_WorkerServicer_to_server
from serving.grpc_guard import GrpcGuard
from serving.grpc_server import GrpcServer, GrpcService
from serving.keys import Keys
from serving.source_log import SourceLog
from worker.session_service import SessionService

logger = logging.getLogger(__name__)

SERVICE_NAME: str = session_pb2.DESCRIPTOR.services_by_name["Worker"].full_name


def keepalive(silence_s: float) -> tuple[tuple[str, int], ...]:
    """Options by which a peer that is gone or stopped is found within `silence_s`.

    Pings are answered by threads of gRPC's own, so a peer whose event loop is busy is not taken for one.
    """
    half_ms = round(silence_s * 500)
    return (
        ("grpc.keepalive_time_ms", half_ms),
        ("grpc.keepalive_timeout_ms", half_ms),
        ("grpc.http2.ping_timeout_ms", half_ms),
        ("grpc.http2.max_pings_without_data", 0),
    )


def session_server(
    sessions: SessionService,
    not_ready_reason: Callable[[], str | None],
    host: str,
    port: int,
    *,
    master_silence_s: float,
    keys: Keys | None = None,
    credentials: grpc.ServerCredentials | None = None,
) -> GrpcServer:
    """With `keys` only masters that present one get a session. `master_silence_s`: then a dead one is given up."""
    return GrpcServer(
        [GrpcService(SERVICE_NAME, partial(add_WorkerServicer_to_server, sessions))],
        not_ready_reason,
        Address(host, port),
        guard=None if keys is None else GrpcGuard(keys, "cluster token", log=SourceLog(logger)),
        credentials=credentials,
        options=keepalive(master_silence_s),
    )

"""The master's gRPC port: Inference and Cluster."""

from functools import partial

import grpc

from config.address import Address
from master.edge.grpc.cluster import Cluster
from master.edge.grpc.inference import Inference
from master.parsing.formats import ParserChoice
from master.service import Service
from protos import cluster_pb2, inference_pb2
from protos.cluster_pb2_grpc import add_ClusterServicer_to_server
from protos.inference_pb2_grpc import add_InferenceServicer_to_server
from serving.grpc_guard import GrpcGuard
from serving.grpc_server import HEALTH_INTERVAL_S, GrpcServer, GrpcService
from serving.keys import Keys

NO_PARSERS = ParserChoice()
SLOW_READER_TIMEOUT_S = 60.0

INFERENCE_NAME: str = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
CLUSTER_NAME: str = cluster_pb2.DESCRIPTOR.services_by_name["Cluster"].full_name

# A silent stream lives as long as its client answers pings, and no longer: a host that vanished frees its blocks.
OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
)


def client_server(
    service: Service,
    host: str,
    port: int,
    *,
    credentials: grpc.ServerCredentials | None = None,
    keys: Keys | None = None,
    health_interval_s: float = HEALTH_INTERVAL_S,
    parsers: ParserChoice = NO_PARSERS,
    slow_reader_timeout_s: float = SLOW_READER_TIMEOUT_S,
) -> GrpcServer:
    """All but health and reflection needs one of `keys`, if set; `parsers` read what chats are answered with.

    A client that takes nothing of its stream for `slow_reader_timeout_s` is cut.
    """
    inference, cluster = Inference(service, parsers, slow_reader_timeout_s), Cluster(service)
    return GrpcServer(
        (
            GrpcService(INFERENCE_NAME, partial(add_InferenceServicer_to_server, inference)),
            GrpcService(CLUSTER_NAME, partial(add_ClusterServicer_to_server, cluster)),
        ),
        service.not_ready_reason,
        Address(host, port),
        guard=None if keys is None else GrpcGuard(keys, "API key"),
        credentials=credentials,
        options=OPTIONS,
        health_interval_s=health_interval_s,
    )

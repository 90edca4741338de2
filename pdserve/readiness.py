"""Waits until a master serves."""

import contextlib

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub


async def is_serving(grpc_address: str) -> None:
    """Returns when the master's health service says SERVING."""
    options = (("grpc.enable_http_proxy", 0),)
    while True:
        async with grpc.aio.insecure_channel(grpc_address, options=options) as channel:
            watch = HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for response in watch:
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        return

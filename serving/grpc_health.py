"""The standard gRPC health service over a process's readiness.

Written here because the one that comes with grpcio-health-checking stops telling a service's watchers once any one of
them has left, and keeps their streams open through the whole grace time of a shutdown.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2 as wire
from grpc_health.v1.health_pb2_grpc import HealthServicer

Context = grpc.aio.ServicerContext[wire.HealthCheckRequest, wire.HealthCheckResponse]

OVERALL = ""  # the protocol's name for the server as a whole


class HealthService(HealthServicer):  # type: ignore[misc]  # generated without types
    """SERVING while a request would succeed now; the same for the server and each of its services."""

    def __init__(
        self, not_ready_reason: Callable[[], str | None], service_names: Collection[str], watch_interval_s: float
    ) -> None:
        """`not_ready_reason` gives None when the process is ready."""
        self._not_ready_reason = not_ready_reason
        self._names = {OVERALL, *service_names}
        self._watch_interval_s = watch_interval_s
        self._closing = asyncio.Event()

    async def Check(self, request: wire.HealthCheckRequest, context: Context) -> wire.HealthCheckResponse:
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"service {request.service!r} is not served here")
        return wire.HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: wire.HealthCheckRequest, context: Context) -> None:
        """Writes the status at once and whenever it has changed; ends, with NOT_SERVING, when the server closes."""
        last = None
        while True:
            is_last = self._closing.is_set()
            status = self._status(request.service)
            if status != last:
                await context.write(wire.HealthCheckResponse(status=status))
            if is_last:
                return
            last = status
            with suppress(TimeoutError):  # readiness is computed when asked for, so there is no event to wait for
                await asyncio.wait_for(self._closing.wait(), self._watch_interval_s)

    def _status(self, name: str) -> wire.HealthCheckResponse.ServingStatus:
        if name not in self._names:
            return wire.HealthCheckResponse.SERVICE_UNKNOWN
        if self._closing.is_set() or self._not_ready_reason() is not None:
            return wire.HealthCheckResponse.NOT_SERVING
        return wire.HealthCheckResponse.SERVING

    def close(self) -> None:
        """The status is NOT_SERVING from now on."""
        self._closing.set()

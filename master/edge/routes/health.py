"""/livez: the process runs. /readyz and /health: a request would succeed now. /metrics: Prometheus."""

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from master.errors import DEFAULT_RETRY_AFTER_S, ErrorKind
from master.service import Service


class HealthRoutes:
    def __init__(self, service: Service, registry: CollectorRegistry) -> None:
        self._service = service
        self._registry = registry

    async def live(self, request: Request) -> Response:
        return Response(b'{"status":"live"}', media_type="application/json")

    async def ready(self, request: Request) -> Response:
        reason = self._service.not_ready_reason()
        if reason is None:
            return Response(b'{"status":"ready"}', media_type="application/json")
        return Response(
            msgspec.json.encode({"status": "not ready", "reason": reason}),
            status_code=503,
            media_type="application/json",
            headers={"retry-after": str(DEFAULT_RETRY_AFTER_S[ErrorKind.UNAVAILABLE])},
        )

    async def metrics(self, request: Request) -> Response:
        """As OpenMetrics for who asks for it, else in Prometheus's own form."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"content-type": content_type})

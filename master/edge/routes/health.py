"""/livez: the process runs. /readyz and /health: a request would succeed now. /metrics: Prometheus."""

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from master.edge.routes.json_response import json_response
from master.errors import DEFAULT_RETRY_AFTER_S, ErrorKind
from master.service import Service
from serving.metrics_response import metrics_response


class HealthRoutes:
    def __init__(self, service: Service, registry: CollectorRegistry) -> None:
        self._service = service
        self._registry = registry

    async def live(self, request: Request) -> Response:
        return json_response({"status": "live"})

    async def ready(self, request: Request) -> Response:
        reason = self._service.not_ready_reason()
        if reason is None:
            return json_response({"status": "ready"})
        response = json_response({"status": "not ready", "reason": reason})
        response.status_code = 503
        response.headers["retry-after"] = str(DEFAULT_RETRY_AFTER_S[ErrorKind.UNAVAILABLE])
        return response

    async def metrics(self, request: Request) -> Response:
        return metrics_response(self._registry, request)

"""The worker's HTTP surface: /livez, /readyz, /metrics."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.metrics_response import metrics_response


def create_app(*, not_ready_reason: Callable[[], str | None], metrics: CollectorRegistry) -> Starlette:
    """`not_ready_reason` is None when the worker would serve a leg now."""

    async def livez(request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def readyz(request: Request) -> Response:
        reason = not_ready_reason()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, status_code=503, headers={"Retry-After": "1"})

    async def scrape(request: Request) -> Response:
        return metrics_response(metrics, request)

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/health", readyz),
            Route("/metrics", scrape),
        ]
    )

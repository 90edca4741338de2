"""All HTTP routes of a master."""

import http
from collections.abc import Mapping

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from master.edge import openapi
from master.edge.access import HttpAccess
from master.edge.dashboard.routes import dashboard_routes
from master.edge.error_form import error_form
from master.edge.http.config import HttpConfig
from master.edge.http.cors import EXTRA_HEADERS, Cors
from master.edge.http.errors import INTERNAL_ERROR, error_headers, http_status
from master.edge.http.metrics import CLIENT_CLOSED, HttpMetrics
from master.edge.post_routes import post_routes
from master.edge.responses.store import ResponseStore
from master.edge.routes import stored_responses
from master.edge.routes.admin import OperationRoutes
from master.edge.routes.health import HealthRoutes
from master.edge.routes.models import ModelRoutes
from master.edge.routes.server import ServerRoutes
from master.edge.routes.stored_responses import StoredResponseRoutes
from master.errors import ErrorKind, ServingError
from master.service import Service
from serving.keys import Keys

OTHER_PATH = "other"  # whatever a client makes up must not become a metric's label


def create_app(
    service: Service,
    config: HttpConfig,
    registry: CollectorRegistry,
    keys: Keys | None = None,
) -> ASGIApp:
    """The master's HTTP API. Metrics are made in `registry`, which /metrics shows.

    Only health and metrics are open to those who present none of `keys`, if there are any.
    """
    metrics = HttpMetrics(registry)
    store = ResponseStore(config.max_stored_responses, config.keep_responses_s)
    posts = post_routes(service, config, metrics, store)
    routes = [*_gets(service, config, registry), *_actions(service, store)]
    routes += dashboard_routes(service) if config.has_dashboard else []
    routes += [Route(path, post, methods=["POST"]) for path, post in posts.items()]
    others = Starlette(
        routes=routes,
        exception_handlers={ServingError: _on_serving_error, HTTPException: _on_http_error, Exception: _on_bug},
    )
    others.router.redirect_slashes = False
    return _App(
        posts,
        others,
        metrics,
        {route.endpoint: route.path for route in routes if isinstance(route, Route)},
        access=None if keys is None else HttpAccess(keys, config),
        cors=Cors(config.cors_origins) if config.cors_origins else None,
    )


def _gets(service: Service, config: HttpConfig, registry: CollectorRegistry) -> list[Route]:
    models, health = ModelRoutes(service), HealthRoutes(service, registry)
    server = ServerRoutes(service, health, shows_tokenizer=config.shows_tokenizer)
    return [
        Route("/v1/models", models.list),
        Route("/v1/models/{model:path}", models.get),
        Route("/health", health.ready),
        Route("/readyz", health.ready),
        Route("/livez", health.live),
        Route("/ping", server.ping, methods=["GET", "POST"]),
        Route("/metrics", health.metrics),
        Route("/", server.root),
        Route("/version", server.root),
        Route("/server_info", server.info),
        Route("/load", server.load),
        Route("/tokenizer_info", server.tokenizer_info),
        Route(openapi.PATH, openapi.OpenApi().get),
    ]


def _actions(service: Service, store: ResponseStore) -> list[Route]:
    operations = OperationRoutes(service)
    return [
        Route(stored_responses.PATH, StoredResponseRoutes(store).handle, methods=stored_responses.METHODS),
        Route("/v1/requests/{id}/cancel", operations.cancel, methods=["POST"]),
        Route("/admin/instances/{name}/drain", operations.drain, methods=["POST"]),
    ]


class _App:
    """The busy routes go past Starlette, whose wrappers would run once for each event of a stream."""

    def __init__(
        self,
        posts: Mapping[str, ASGIApp],
        others: ASGIApp,
        metrics: HttpMetrics,
        paths: Mapping[object, str],
        *,
        access: HttpAccess | None,
        cors: Cors | None,
    ) -> None:
        self._posts = posts
        self._others = others
        self._metrics = metrics
        self._paths = paths  # by endpoint
        self._access = access
        self._cors = cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._others(scope, receive, send)
            return
        if len(scope["path"]) > 1 and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        if self._cors is not None and await self._cors.answer_preflight(scope, send):
            return
        if self._access is not None and (error := self._access.refusal(scope)) is not None:
            status = await self._access.refuse(error, scope, receive, send)
            self._metrics.count(scope["path"] if scope["path"] in self._posts else OTHER_PATH, status)
            return
        post = self._posts.get(scope["path"]) if scope["method"] == "POST" else None
        if post is not None:
            await post(scope, receive, send)
        else:
            await self._serve_other(scope, receive, send)

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = CLIENT_CLOSED

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *scope.get(EXTRA_HEADERS, ())]
            await send(message)

        try:
            await self._others(scope, receive, note_status)
        finally:
            self._metrics.count(self._paths.get(scope.get("endpoint"), OTHER_PATH), status)


async def _on_serving_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    return _response(request, error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    match error.status_code:
        case 404:
            told = ServingError(ErrorKind.NOT_FOUND, f"{where}: there is no such path")
        case 405:
            told = ServingError(ErrorKind.METHOD_NOT_ALLOWED, f"{where}: this path does not take the method")
        case 400:
            told = ServingError(ErrorKind.INVALID_REQUEST, f"{where}: {error.detail}")
        case status:
            phrase = http.HTTPStatus(status).phrase
            told = ServingError(ErrorKind.INTERNAL, f"{where}: {phrase}")
    if request.method == "OPTIONS" and error.status_code == 405:
        return Response(status_code=204, headers=error.headers)  # a client that asks what it may send
    response = _response(request, told)
    response.headers.update(error.headers or {})
    return response


async def _on_bug(request: Request, error: Exception) -> Response:
    """Starlette raises the error again, so that the server logs it."""
    return _response(request, INTERNAL_ERROR)


def _response(request: Request, error: ServingError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return Response(error_form(request.url.path)(error), http_status(error), headers, media_type="application/json")

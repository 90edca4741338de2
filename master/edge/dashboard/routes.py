"""/dashboard: one static page, and what it shows as JSON."""

from collections.abc import Sequence
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from master.edge.dashboard.access import PATH
from master.edge.dashboard.cluster import cluster_of
from master.edge.dashboard.live import live_of
from master.edge.dashboard.requests import RequestDetail, detail_of, lists_of
from master.edge.routes.admin import OperationRoutes
from master.edge.routes.json_response import json_response
from master.errors import ErrorKind, ServingError
from master.service import Service

FILES = {
    "page.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "request.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
}
# Nothing comes from elsewhere, nothing is run that is not in these files, and no other page may frame this one.
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
# A browser sends a password by itself, on behalf of whatever page asks it to; this header only for a page of ours.
OWN_PAGE_HEADER = "x-pdserve-page"


def dashboard_routes(service: Service) -> Sequence[Route]:
    dashboard = Dashboard(service)
    return [
        Route(PATH, dashboard.page),
        Route(f"{PATH}/data", dashboard.data),
        Route(f"{PATH}/requests/{{name:path}}", dashboard.find),
        Route(f"{PATH}/drain/{{name}}", dashboard.drain, methods=["POST"]),
        Route(f"{PATH}/cancel/{{id}}", dashboard.cancel, methods=["POST"]),
        Route(f"{PATH}/{{file}}", dashboard.file),
    ]


class Dashboard:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._operations = OperationRoutes(service)
        folder = files("master.edge.dashboard") / "page"
        self._files = {name: (folder / name).read_bytes() for name in FILES}

    async def page(self, request: Request) -> Response:
        return self._file("page.html")

    async def file(self, request: Request) -> Response:
        """Raises ServingError NOT_FOUND."""
        name = request.path_params["file"]
        if name not in FILES:
            raise ServingError(ErrorKind.NOT_FOUND, f"GET {request.url.path}: there is no such path")
        return self._file(name)

    async def data(self, request: Request) -> Response:
        """All that the page shows but single requests."""
        history = self._service.history
        response = json_response(
            {
                "cluster": cluster_of(self._service),
                "live": live_of(history.samples),
                "requests": lists_of(history.log),
                "running": history.log.num_running,
            }
        )
        response.headers["cache-control"] = "no-store"
        return response

    async def find(self, request: Request) -> Response:
        """The requests of this id or name, the latest first. Raises ServingError NOT_FOUND if there is none."""
        name = request.path_params["name"]
        found: Sequence[RequestDetail] = [detail_of(one) for one in self._service.history.log.find(name)]
        if not found:
            raise ServingError(ErrorKind.NOT_FOUND, f"this master remembers no request {name!r}", field="id")
        return json_response({"requests": found})

    async def drain(self, request: Request) -> Response:
        """Raises ServingError as `OperationRoutes.drain` does, and for a request that is no page's of ours."""
        _check_own_page(request)
        return await self._operations.drain(request)

    async def cancel(self, request: Request) -> Response:
        _check_own_page(request)
        return await self._operations.cancel(request)

    def _file(self, name: str) -> Response:
        return Response(self._files[name], headers={"content-type": FILES[name], **SECURITY_HEADERS})


def _check_own_page(request: Request) -> None:
    if OWN_PAGE_HEADER not in request.headers:
        message = f"without the header {OWN_PAGE_HEADER} this is not done; use the API instead of the page's paths"
        raise ServingError(ErrorKind.INVALID_REQUEST, message)

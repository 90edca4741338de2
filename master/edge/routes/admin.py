"""/v1/requests/{id}/cancel and /admin/instances/{name}/drain"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from master.edge.http.caller import caller
from master.service import Service


class CancelledRequest(msgspec.Struct, frozen=True):
    """It has ended, and no worker holds anything for it."""

    id: str
    status: str = "cancelled"


class DrainingInstance(msgspec.Struct, frozen=True):
    """It finishes what it has and takes nothing new."""

    name: str
    status: str = "draining"


class OperationRoutes:
    """Neither has a body; both raise ServingError."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def cancel(self, request: Request) -> Response:
        request_id = request.path_params["id"]
        await self._service.cancel(request_id, caller(request.scope))
        return _json(CancelledRequest(request_id))

    async def drain(self, request: Request) -> Response:
        name = request.path_params["name"]
        await self._service.drain_instance(name)
        return _json(DrainingInstance(name))


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")

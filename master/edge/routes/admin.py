"""/v1/requests/{id}/cancel and /admin/instances/{name}/drain"""

import logging

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from master.edge.http.caller import caller
from master.edge.routes.json_response import json_response
from master.service import Service

logger = logging.getLogger(__name__)


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
        logger.info("%s: cancelled by %s", ascii(request_id), _who(request))
        return json_response(CancelledRequest(request_id))

    async def drain(self, request: Request) -> Response:
        name = request.path_params["name"]
        await self._service.drain_instance(name)
        logger.info("worker %s: told to drain by %s", name, _who(request))
        return json_response(DrainingInstance(name))


def _who(request: Request) -> str:
    """Names whoever asks in the log: an address, and which key it presented, if any, without showing that."""
    address = request.client.host if request.client is not None else "a local socket"
    key = caller(request.scope)
    return f"{address}, key {key}" if key else address

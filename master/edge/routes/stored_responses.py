"""/v1/responses/{id}: what a client asked to keep."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from master.edge.responses.store import ResponseStore, not_stored
from master.edge.routes.json_response import json_response

PATH = "/v1/responses/{response_id:path}"
METHODS = ["GET", "POST", "DELETE"]


class DeletedResponse(msgspec.Struct, frozen=True):
    id: str
    object: str = "response"
    deleted: bool = True


class StoredResponseRoutes:
    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def handle(self, request: Request) -> Response:
        """Raises ServingError NOT_FOUND; always for a POST: an answer that is stored can't be cancelled any more."""
        asked = request.path_params["response_id"]
        match request.method:
            case "GET" | "HEAD":
                return Response(self._store.find(asked).answer, media_type="application/json")
            case "DELETE":
                self._store.forget(asked)
                return json_response(DeletedResponse(asked))
        raise not_stored(asked)

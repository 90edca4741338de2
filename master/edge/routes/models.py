"""/v1/models"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from master.service import ModelCard, Service


class ModelRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, request: Request) -> Response:
        cards = [_model(card) for card in self._service.models()]
        return Response(msgspec.json.encode({"object": "list", "data": cards}), media_type="application/json")

    async def get(self, request: Request) -> Response:
        """Raises ServingError NOT_FOUND."""
        card = self._service.resolve_model(request.path_params["model"])
        return Response(msgspec.json.encode(_model(card)), media_type="application/json")


def _model(card: ModelCard) -> dict[str, object]:
    """The length of the context is under both names clients look for."""
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owner,
        "max_model_len": card.max_context,
        "context_length": card.max_context,
    }

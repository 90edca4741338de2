"""/v1/models"""

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from master.edge.routes.json_response import json_response
from master.service import ModelCard, Service

ANTHROPIC_HEADER = "anthropic-version"  # its clients send it with every request


class ModelRoutes:
    """Answers in OpenAI's form, or in Anthropic's for its clients."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, request: Request) -> Response:
        cards = self._service.models()
        if ANTHROPIC_HEADER in request.headers:
            data = [_anthropic_model(card) for card in cards]
            ends = {"first_id": cards[0].id, "last_id": cards[-1].id, "has_more": False}
            return json_response({"data": data, **ends})
        root = cards[0].id
        return json_response({"object": "list", "data": [_model(card, root) for card in cards]})

    async def get(self, request: Request) -> Response:
        """Raises ServingError NOT_FOUND."""
        card = self._service.resolve_model(request.path_params["model"])
        if ANTHROPIC_HEADER in request.headers:
            return json_response(_anthropic_model(card))
        return json_response(_model(card, self._service.resolve_model(None).id))


def _model(card: ModelCard, root: str) -> dict[str, object]:
    """The length of the context is under both names clients look for; `root` is the model that an alias stands for."""
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owner,
        "root": root,
        "parent": None,
        "max_model_len": card.max_context,
        "context_length": card.max_context,
    }


def _anthropic_model(card: ModelCard) -> dict[str, object]:
    created = datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": card.id,
        "display_name": card.id,
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": card.max_context,
    }

"""/v1/embeddings, which the models served here do not offer."""

import msgspec

from master.edge.http.request_body import decode_body
from master.errors import ErrorKind, ServingError
from master.service import Service

PATH = "/v1/embeddings"


class EmbeddingsBody(msgspec.Struct, frozen=True):
    model: str | None = None


class NoEmbeddings:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._decoder = msgspec.json.Decoder(EmbeddingsBody)

    async def __call__(self, body_bytes: bytes) -> bytes:
        """Raises ServingError, always."""
        card = self._service.resolve_model(decode_body(body_bytes, self._decoder).model)
        message = f"the model {card.id!r} offers no embeddings: it generates text"
        raise ServingError(ErrorKind.INVALID_REQUEST, message, field="model", code="model_without_embeddings")

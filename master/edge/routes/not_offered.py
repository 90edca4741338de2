"""APIs that take another kind of model. Clients probe them; each is refused, and told why."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from master.edge.http.request_body import decode_body
from master.errors import ErrorKind, ServingError
from master.service import Service

EMBEDDINGS, SCORES, RANKINGS = "embeddings", "scores", "rankings"
NOT_OFFERED: Mapping[str, str] = {
    "/v1/embeddings": EMBEDDINGS,
    "/v1/score": SCORES,
    "/score": SCORES,
    "/v1/rerank": RANKINGS,
    "/v2/rerank": RANKINGS,
    "/rerank": RANKINGS,
}


class NotOfferedBody(msgspec.Struct, frozen=True):
    model: str | None = None


class NotOffered:
    """`what` names what the API would give."""

    def __init__(self, service: Service, what: str) -> None:
        self._service = service
        self._what = what
        self._decoder = msgspec.json.Decoder(NotOfferedBody)

    async def __call__(self, body_bytes: bytes) -> bytes:
        """Raises ServingError, always."""
        card = self._service.resolve_model(decode_body(body_bytes, self._decoder).model)
        message = f"the model {card.id!r} offers no {self._what}: it generates text"
        raise ServingError(ErrorKind.INVALID_REQUEST, message, field="model", code=f"model_without_{self._what}")


def not_offered(service: Service) -> dict[str, Callable[[bytes], Awaitable[bytes]]]:
    """What answers a POST, by path."""
    return {path: NotOffered(service, what) for path, what in NOT_OFFERED.items()}

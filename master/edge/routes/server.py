"""What clients of other servers probe: /, /version, /server_info, /load, /ping, and /tokenizer_info where it is on."""

from importlib.metadata import version

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from master.edge.routes.health import HealthRoutes
from master.edge.routes.json_response import json_response
from master.errors import ErrorKind, ServingError
from master.service import Service


class ServerVersion(msgspec.Struct, frozen=True):
    version: str


class ServerLoad(msgspec.Struct, frozen=True):
    """Requests in flight on this master."""

    server_load: int


class ServerInfo(msgspec.Struct, frozen=True):
    version: str
    model: str
    max_model_len: int
    workers: int
    server_load: int


class TokenizerInfo(msgspec.Struct, frozen=True):
    """`chat_template` is null for a model that has none."""

    tokenizer_class: str
    vocab_size: int
    eos_token_ids: list[int]
    special_token_ids: list[int]
    chat_template: str | None


class ServerRoutes:
    def __init__(self, service: Service, health: HealthRoutes, *, shows_tokenizer: bool) -> None:
        self._service = service
        self._health = health
        self._shows_tokenizer = shows_tokenizer
        self._version = version("pdserve")

    async def root(self, request: Request) -> Response:
        return json_response(ServerVersion(self._version))

    async def load(self, request: Request) -> Response:
        return json_response(ServerLoad(self._service.num_in_flight))

    async def ping(self, request: Request) -> Response:
        """Empty, with the status of /readyz: what SageMaker asks."""
        ready = await self._health.ready(request)
        return Response(status_code=ready.status_code)

    async def info(self, request: Request) -> Response:
        card = self._service.resolve_model(None)
        num_workers = sum(instance.is_connected for instance in self._service.instances())
        return json_response(
            ServerInfo(self._version, card.id, card.max_context, num_workers, self._service.num_in_flight)
        )

    async def tokenizer_info(self, request: Request) -> Response:
        """Raises ServingError NOT_FOUND unless the flag is on: a template may be its owner's secret."""
        if not self._shows_tokenizer:
            message = "/tokenizer_info is off; --enable_tokenizer_info turns it on"
            raise ServingError(ErrorKind.NOT_FOUND, message)
        tokenizer = self._service.tokenizer
        info = TokenizerInfo(
            tokenizer_class=type(tokenizer).__name__,
            vocab_size=tokenizer.vocab_size,
            eos_token_ids=sorted(tokenizer.eos_ids),
            special_token_ids=sorted(tokenizer.special_ids),
            chat_template=self._service.chat_template.source,
        )
        return json_response(info)

"""A POST of JSON that is answered at once with JSON."""

import logging
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from master.edge.http.config import HttpConfig
from master.edge.http.disconnect import ClientGone, until_gone
from master.edge.http.errors import INTERNAL_ERROR, ErrorBody, error_body
from master.edge.http.metrics import CLIENT_CLOSED, HttpMetrics
from master.edge.http.request_body import read_or_refuse
from master.edge.http.response import HttpResponse
from master.edge.slow_reader import SlowReader
from master.errors import ServingError

logger = logging.getLogger(__name__)


class JsonEndpoint:
    """An ASGI application around `answer`, which turns the body's JSON into the answer's and raises ServingError."""

    def __init__(
        self,
        path: str,
        answer: Callable[[bytes], Awaitable[bytes]],
        config: HttpConfig,
        metrics: HttpMetrics,
        error_body: ErrorBody = error_body,
    ) -> None:
        self._path = path
        self._answer = answer
        self._config = config
        self._metrics = metrics
        self._error_body = error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = HttpResponse(scope, send, self._config.slow_reader_timeout_s, self._error_body)
        try:
            body = await read_or_refuse(scope, receive, self._config, response)
            if body is not None:
                await self._respond(body, response)
        except ClientGone:
            logger.debug("a client of %s left", self._path)
        except SlowReader:
            response.abort()
            await until_gone(receive)
        finally:
            self._metrics.count(self._path, response.final_status or CLIENT_CLOSED)

    async def _respond(self, body: bytes, response: HttpResponse) -> None:
        try:
            answer = await self._answer(body)
        except ServingError as error:
            await response.fail(error)
        except Exception:
            logger.exception("a bug in serving %s", self._path)
            await response.fail(INTERNAL_ERROR)
        else:
            await response.whole(200, answer)

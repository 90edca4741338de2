"""The life of one generating HTTP request.

read the body → make an Answer of it (tokenised, checked) → take the first output → headers → events or, at the end,
one body. Whoever leaves first ends it: the client (the outputs are closed at once), or the outputs (with an error).

It is an ASGI application by itself: a framework's wrappers would run once more for each event.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from master.edge.answer import Answer
from master.edge.body import read_or_refuse
from master.edge.client_gone import ClientGone, raise_when_gone, until_gone
from master.edge.error_response import INTERNAL_ERROR
from master.edge.http_config import HttpConfig
from master.edge.http_metrics import CLIENT_CLOSED, HttpMetrics, RequestTimer
from master.edge.merged_outputs import merged_outputs
from master.edge.reply import Reply, SlowReader
from master.errors import ErrorKind, ServingError
from master.service import Service

logger = logging.getLogger(__name__)


class GenerationEndpoint:
    def __init__(
        self,
        path: str,
        read: Callable[[bytes], Awaitable[Answer]],
        service: Service,
        config: HttpConfig,
        metrics: HttpMetrics,
    ) -> None:
        self._path = path
        self._read = read
        self._service = service
        self._config = config
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(scope, send, self._config.slow_reader_timeout_s)
        timer = self._metrics.timer(self._path)
        try:
            async with asyncio.TaskGroup() as tasks:
                body = await read_or_refuse(scope, receive, self._config, reply)
                if body is not None:
                    watch = tasks.create_task(raise_when_gone(receive))
                    await self._answer(body, reply, timer)
                    watch.cancel()
        except* ClientGone:
            logger.debug("a client of %s left", self._path)
        except* SlowReader:
            logger.info(
                "a client of %s took nothing for %s s and was cut", self._path, self._config.slow_reader_timeout_s
            )
            reply.abort()
            await until_gone(receive)
        finally:
            timer.end(reply.final_status or CLIENT_CLOSED)

    async def _answer(self, body: bytes, reply: Reply, timer: RequestTimer) -> None:
        answer_id = "-"
        try:
            answer = await self._read(body)
            answer_id = answer.id
            reply.name(answer_id)
            await self._serve(answer, reply, timer)
        except ServingError as error:
            if error.kind is ErrorKind.INTERNAL:
                logger.error("%s: %s", answer_id, error.message)
            await reply.fail(error)
        except SlowReader:
            raise
        except Exception:
            logger.exception("%s: a bug in serving %s", answer_id, self._path)
            await reply.fail(INTERNAL_ERROR)

    async def _serve(self, answer: Answer, reply: Reply, timer: RequestTimer) -> None:
        generators = [self._service.generate(request) for request in answer.requests]
        async with aclosing(merged_outputs(generators)) as outputs:
            async for prompt, output in outputs:
                timer.output(output)
                # may find that the output is a failure: before the headers say 200
                events = answer.add(prompt, output)
                if not answer.is_stream:
                    continue
                if reply.status is None:
                    await reply.start_stream()
                if events:
                    await reply.write(events)
        last = answer.end()
        if answer.is_stream and reply.status is not None:
            await reply.end_stream(last)
        else:
            await reply.whole(200, last)

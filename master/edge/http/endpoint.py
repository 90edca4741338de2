"""The life of one generating HTTP request.

read the body → make an Answer of it (tokenised, checked) → take the first output → headers → events or, at the end,
one body. Whoever leaves first ends it: the client (the outputs are closed at once), or the outputs (with an error).

It is an ASGI application by itself: a framework's wrappers would run once more for each event.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from starlette.types import Receive, Scope, Send

from master.edge.http.answer import Answer, StreamedAnswer
from master.edge.http.batch import Batch
from master.edge.http.caller import caller
from master.edge.http.config import HttpConfig
from master.edge.http.disconnect import ClientGone, raise_when_gone, until_gone
from master.edge.http.errors import INTERNAL_ERROR, ErrorBody, error_body
from master.edge.http.merged_outputs import merged_outputs
from master.edge.http.metrics import CLIENT_CLOSED, HttpMetrics, RequestTimer
from master.edge.http.request_body import read_or_refuse
from master.edge.http.response import HttpResponse
from master.edge.slow_reader import SlowReader
from master.errors import ErrorKind, ServingError
from master.output import GenerationOutput, OutputTiming
from master.request import GenerationRequest
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
        error_body: ErrorBody = error_body,
    ) -> None:
        self._path = path
        self._read = read
        self._service = service
        self._config = config
        self._metrics = metrics
        self._error_body = error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = HttpResponse(scope, send, self._config.slow_reader_timeout_s, self._error_body)
        timer = self._metrics.timer(self._path)
        try:
            async with asyncio.TaskGroup() as tasks:
                body = await read_or_refuse(scope, receive, self._config, response)
                if body is not None:
                    watch = tasks.create_task(raise_when_gone(receive))
                    await self._answer(body, response, timer, caller(scope))
                    watch.cancel()
        except* ClientGone:
            logger.debug("a client of %s left", self._path)
        except* SlowReader:
            response.abort()
            await until_gone(receive)
        finally:
            timer.end(response.final_status or CLIENT_CLOSED)

    async def _answer(self, body: bytes, response: HttpResponse, timer: RequestTimer, client: str) -> None:
        answer: Answer | None = None
        arrived_s = time.monotonic()
        try:
            answer = await self._read(body)
            header = response.client_request_id
            named = [_named(request, arrived_s, answer, client, header) for request in answer.requests]
            timer.is_streamed = answer.is_streamed
            response.name(answer.id)
            await self._serve(answer, named, response, timer)
        except ServingError as error:
            if error.kind is ErrorKind.INTERNAL:
                logger.error("%s: %s", answer.id if answer else "-", error.message)
            await _fail(answer, response, error)
        except SlowReader:
            silence_s = self._config.slow_reader_timeout_s
            logger.info("%s: its client took nothing for %g s and is cut", answer.id if answer else "-", silence_s)
            raise
        except Exception:
            logger.exception("%s: a bug in serving %s", answer.id if answer else "-", self._path)
            await _fail(answer, response, INTERNAL_ERROR)

    async def _serve(
        self, answer: Answer, requests: Sequence[GenerationRequest], response: HttpResponse, timer: RequestTimer
    ) -> None:
        if len(requests) == 1:
            async with aclosing(self._service.generate(requests[0])) as outputs:
                async for output in outputs:
                    await _add(answer, 0, output, response, timer)
        else:
            batch = Batch(len(requests))
            generators = [batch.outputs(request, self._service.generate(request)) for request in requests]
            async with aclosing(merged_outputs(generators)) as numbered:
                async for prompt, output in numbered:
                    await _add(answer, prompt, output, response, timer)
        last = answer.end()
        if response.status is not None:
            await response.end_stream(last)
        else:
            await response.whole(200, last)


async def _add(
    answer: Answer, prompt: int, output: GenerationOutput, response: HttpResponse, timer: RequestTimer
) -> None:
    timer.output(output)
    # may find that the output is a failure: before the headers say 200
    events = answer.add(prompt, output)
    if not answer.is_streamed:
        return
    if response.status is None:
        await response.start_stream()
    if events:
        await response.write(events)


def _named(
    request: GenerationRequest, arrived_s: float, answer: Answer, client: str, header: str | None
) -> GenerationRequest:
    """Under the names by which its client may cancel it; one in the body goes before the header's.

    It arrived before its prompt was tokenised.
    """
    return replace(
        request,
        arrived_s=arrived_s,
        answer_id=answer.id,
        client=client,
        name=request.name or header,
        timing=_timing(request, answer),
    )


def _timing(request: GenerationRequest, answer: Answer) -> OutputTiming:
    """Stop strings are looked for in outputs, and a prompt that is cancelled alone shows what it had until then."""
    is_whole = not answer.is_streamed and not request.stop and len(answer.requests) == 1
    return OutputTiming.WHOLE if is_whole else OutputTiming.GATHERED


async def _fail(answer: Answer | None, response: HttpResponse, error: ServingError) -> None:
    if isinstance(answer, StreamedAnswer) and response.status is not None:
        await response.end_stream(answer.fail(error), error)
    else:
        await response.fail(error)

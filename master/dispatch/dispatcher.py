"""The life of one request, from admission to its last token.

admitted, or refused --> waits for a route --> attempts, one after the other --> every sequence finished
at any time: cancelled by its id, left by its client, out of time
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager

from master.dispatch.parts import DispatchParts
from master.dispatch.request_run import RequestRun
from master.dispatch.running_requests import RunningRequest, RunningRequests
from master.dispatch.sequence_text import SequenceText
from master.errors import ErrorKind, ServingError
from master.history.log import RequestLog
from master.history.record import Outcome
from master.output import GenerationOutput, Usage
from master.request import GenerationRequest
from master.routing.fleet_health import FleetHealth
from master.text.stop_strings import StopStrings
from master.text.tokenizer import Tokenizer
from master.workers.leg import Leg

CANCEL_TIMEOUT_S = 10.0  # for workers to let go of a cancelled request


class Dispatcher:
    def __init__(self, parts: DispatchParts, tokenizer: Tokenizer) -> None:
        self._parts = parts
        self._tokenizer = tokenizer
        self._running = RunningRequests()
        self.num_in_flight = 0

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """Closing the generator cancels the request on every worker. Raises ServingError."""
        with self._parts.log.hold(request) as kept, self._admitted():
            stops = StopStrings(request.stop)
            sequences = [SequenceText(request, index, self._tokenizer, stops) for index in range(request.n)]
            run = RequestRun(request, self._parts)
            kept.follow(run.progress, run.trace)
            running = asyncio.create_task(run.run(), name=request.id)
            running.add_done_callback(lambda _: run.progress.wake())
            with self._running.hold(request, running) as entry:
                try:
                    is_last = False
                    while not is_last:
                        output = await self._next_output(run, entry, sequences)
                        if output is None:
                            continue
                        if output.usage is not None:
                            is_last = True
                            kept.outcome = Outcome.FINISHED
                            self._parts.metrics.finish(run.trace.num_workers)
                        yield output
                finally:
                    running.cancel()
                    if not running.done():
                        await asyncio.wait([running])
                    if not running.cancelled():
                        running.exception()  # it has been told, or came too late to matter

    async def _next_output(
        self, run: RequestRun, entry: RunningRequest, sequences: Sequence[SequenceText]
    ) -> GenerationOutput | None:
        """What is new, None if that is nothing to show. Raises what ended the request, once all else is said."""
        news = await run.progress.take()
        if entry.is_cancelled:
            raise ServingError(ErrorKind.CANCELLED, f"{entry.request.id} was cancelled")
        deltas = [shown for delta in news if (shown := sequences[delta.sequence].take(delta)) is not None]
        is_last = False
        for shown in deltas:
            if isinstance(shown.matched_stop, str):
                run.finish_sequence(shown.index)
            is_last = is_last or shown.finish_reason is not None
        is_last = is_last and _are_finished(sequences)
        if not deltas:
            if entry.running.done() and not is_last:
                entry.running.result()  # raises what ended it
            return None
        if entry.running.done() and not is_last:
            run.progress.wake()  # nobody else will
        run.trace.answer()
        return GenerationOutput(
            deltas=tuple(deltas),
            usage=_usage(entry.request, sequences, run.trace.cached_tokens) if is_last else None,
            timeline=run.trace.timeline() if is_last else None,
            prompt_logprobs=run.trace.take_prompt_logprobs(),
            cached_tokens=run.trace.cached_tokens,
        )

    @property
    def log(self) -> RequestLog:
        return self._parts.log

    @property
    def health(self) -> FleetHealth:
        return self._parts.health

    def not_ready_reason(self) -> str | None:
        """Why no request could begin now; None when one could."""
        return self._parts.routes.missing()

    async def cancel(self, request_id: str, client: str = "") -> None:
        """Ends the request of this id, all that are answered under it, or all that `client` gave this name.

        Whoever waits for them gets CANCELLED.

        Returns when no worker that can be reached holds anything for it. Raises ServingError NOT_FOUND, or
        DEADLINE_EXCEEDED when that was not confirmed in time; it is cancelled all the same.
        """
        found = self._running.find(request_id, client)
        if not found:
            raise ServingError(ErrorKind.NOT_FOUND, f"no request {request_id!r} is running here", field="id")
        for entry in found:
            entry.cancel()
        legs: list[Leg] = []
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                await asyncio.wait([entry.running for entry in found])
                legs = [leg for entry in found for leg in self._parts.workers.legs_of(entry.request.id)]
                for leg in legs:
                    await leg.ended.wait()
                for entry in found:
                    await entry.ended.wait()
        except TimeoutError as error:
            waited = sorted({leg.worker for leg in legs if not leg.ended.is_set()}) or ["its client's connection"]
            message = f"{request_id} is cancelled, but {CANCEL_TIMEOUT_S:g} s were not enough for {', '.join(waited)}"
            raise ServingError(ErrorKind.DEADLINE_EXCEEDED, message) from error

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        """The request is in flight for as long as this is entered. Raises ServingError when too many are."""
        if self.num_in_flight >= self._parts.flags.max_requests:
            message = f"{self.num_in_flight} requests are in flight, no more are taken"
            raise ServingError(ErrorKind.OVERLOADED, message)
        self.num_in_flight += 1
        self._parts.budget.count_request()
        try:
            yield
        finally:
            self.num_in_flight -= 1


def _are_finished(sequences: Sequence[SequenceText]) -> bool:
    return all(sequence.is_finished for sequence in sequences)


def _usage(request: GenerationRequest, sequences: Sequence[SequenceText], cached_tokens: int | None) -> Usage:
    return Usage(
        prompt_tokens=len(request.prompt_ids),
        completion_tokens=sum(sequence.num_tokens for sequence in sequences),
        cached_tokens=cached_tokens or 0,
    )

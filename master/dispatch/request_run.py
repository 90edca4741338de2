"""The attempts of one request, and what happens when one fails.

Sequences that stand at the same tokens share an attempt (at first all of them: one prefill, n continuations). When it
fails, what is unfinished goes on from the tokens it has, in new attempts on other workers; sampling is a function of
position, so the continuation is the one there would have been.
"""

import asyncio
import logging
import time

from master.dispatch.attempt import Attempt
from master.dispatch.fault import ERROR_KINDS, AttemptFailed, Fault
from master.dispatch.parts import DispatchParts
from master.dispatch.retry_budget import Failures
from master.dispatch.routes import RouteAsk
from master.dispatch.token_progress import TokenProgress
from master.dispatch.trace import RequestTrace
from master.errors import WORKERS_LOST, ErrorKind, ServingError
from master.request import GenerationRequest
from master.routing.circuit import CircuitState
from master.routing.router import Route
from master.routing.views import PromptView
from protos.sampling_messages import FinishReason

logger = logging.getLogger(__name__)

SETTLE_S = 0.25  # after a loss: workers that died together are then known to be dead, and count as one
MIN_BACK_OFF_S = 0.1
MAX_BACK_OFF_S = 2.0


class RequestRun:
    """`run` returns when every sequence is finished, or raises ServingError; cancel it to give up."""

    def __init__(self, request: GenerationRequest, parts: DispatchParts) -> None:
        self.progress = TokenProgress(request.n, request.timing, parts.pace)
        self.trace = RequestTrace(request.arrived_s)
        self._request = request
        self._parts = parts
        self._avoided: set[str] = set()
        self._refused: dict[str, float] = {}  # until when workers that had no room are not asked again
        self._back_off_s = MIN_BACK_OFF_S
        self._running: set[Attempt] = set()
        self._model: str | None = None  # that emitted its tokens; an answer is never a mixture

    async def run(self) -> None:
        request = self._request
        self.trace.admit()
        try:
            async with asyncio.timeout(request.arrived_s + request.time_limit_s - time.monotonic()):
                await self._run_sequences(tuple(range(request.n)), Failures())
        except TimeoutError as error:
            message = f"not finished within {request.time_limit_s:g} s"
            raise ServingError(ErrorKind.DEADLINE_EXCEEDED, message) from error
        finally:
            if self._parts.suspects.clear(request.id):
                self._parts.routes.wake()

    def finish_sequence(self, index: int) -> None:
        """The sequence needs no further token: a stop string was found, which only the master looks for."""
        self.progress.finish(index, FinishReason.STOP)
        for attempt in self._running:
            attempt.finish_sequence(index)

    async def _run_sequences(self, sequences: tuple[int, ...], failures: Failures) -> None:
        """Brings sequences that stand at the same tokens to their end."""
        num_tokens = self._num_tokens(sequences)
        try:
            await self._attempt(sequences, is_resumed=failures.total > 0)
            return
        except AttemptFailed as failed:
            self.trace.fail_attempt(failed.worker, failed.fault.value)
            if failed.fault not in (Fault.NO_ROOM, Fault.LEFT):
                failures = failures.another(has_progressed=self._num_tokens(sequences) > num_tokens)
            self._check_retry(failed, failures)
            await asyncio.sleep(self._pause_s(failed))
        unfinished = [index for index in sequences if self.progress.sequences[index].finish_reason is None]
        try:
            async with asyncio.TaskGroup() as tasks:
                for group in self._groups(unfinished):
                    tasks.create_task(self._run_sequences(group, failures))
        except* ServingError as errors:
            raise _first(errors) from None

    async def _attempt(self, sequences: tuple[int, ...], is_resumed: bool) -> None:
        output_ids = tuple(self.progress.sequences[sequences[0]].token_ids)
        request = self._request
        prompt = PromptView(
            request.prompt_ids + output_ids,
            len(request.prompt_ids) + request.sampling.max_tokens,
            request.cache_salt,
            len(sequences),
        )
        attempt = Attempt(
            request,
            sequences,
            output_ids,
            await self._route(prompt, is_resumed or bool(output_ids)),
            prompt,
            parts=self._parts,
            progress=self.progress,
            trace=self.trace,
            avoided=self._avoided,
        )
        self.trace.begin_attempt(attempt.worker)
        self._running.add(attempt)
        try:
            await attempt.run()
        finally:
            self._running.discard(attempt)

    async def _route(self, prompt: PromptView, is_resumed: bool) -> Route:
        """Raises ServingError when there is no worker for it."""
        asked_s = time.monotonic()
        model = self._model if self.progress.num_tokens else None
        ask = RouteAsk(self._request.id, prompt, is_resumed, self._avoided, self._refused, model)
        route = await self._parts.routes.find(ask)
        self._model = route.worker.model
        self.trace.wait(time.monotonic() - asked_s)
        return route

    def _check_retry(self, failed: AttemptFailed, failures: Failures) -> None:
        """Returns when what is unfinished may be tried again; else raises what the client is told."""
        if failed.fault is Fault.REQUEST or not failures.may_try_again:
            raise _told(failed)
        if failed.fault is Fault.LOST:
            self._check_suspicion(failed)
        elif failed.fault is Fault.ENGINE and not self._is_retry_paid(failed.worker):
            raise _told(failed)
        elif failed.fault is Fault.NO_ROOM:
            self._refused[failed.worker] = time.monotonic() + self._next_back_off_s()
        if failed.fault is not Fault.NO_ROOM:
            self._avoided.add(failed.worker)
        self._parts.metrics.retry(failed.fault)
        if self.progress.num_tokens:
            self._parts.metrics.moved_requests.inc()
        what = f"attempt on {failed.worker} failed ({failed.fault.value})"
        logger.info("%s: %s, trying again: %s", self._request.id, what, failed.failure.message)

    def _check_suspicion(self, failed: AttemptFailed) -> None:
        """Raises ServingError for a request that has to be taken for what kills its workers."""
        request_id = self._request.id
        if self._parts.suspects.lost(request_id, failed.began_s, time.monotonic(), self.progress.num_tokens):
            self._parts.metrics.killers.inc()
            message = f"two workers were lost while they ran it, so no third one is tried: {failed.failure.message}"
            logger.error("%s: %s", request_id, message)
            raise ServingError(ErrorKind.INTERNAL, message, code=WORKERS_LOST)

    def _pause_s(self, failed: AttemptFailed) -> float:
        """The next attempt waits for it. A worker that leaves may be the only one, and tells all a little later."""
        match failed.fault:
            case Fault.LOST:
                return SETTLE_S
            case Fault.LEFT:
                return self._next_back_off_s()
            case _:
                return 0.0

    def _next_back_off_s(self) -> float:
        back_off_s, self._back_off_s = self._back_off_s, min(self._back_off_s * 2, MAX_BACK_OFF_S)
        return back_off_s

    def _is_retry_paid(self, worker: str) -> bool:
        """A worker whose circuit is open is asked for nothing more, so leaving it can't become a storm."""
        is_open = self._parts.health.circuit_of(worker) is not CircuitState.CLOSED
        return is_open or self._parts.budget.try_spend()

    def _num_tokens(self, sequences: tuple[int, ...]) -> int:
        return sum(len(self.progress.sequences[index].token_ids) for index in sequences)

    def _groups(self, sequences: list[int]) -> list[tuple[int, ...]]:
        """Sequences by the tokens they stand at."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for index in sequences:
            groups.setdefault(tuple(self.progress.sequences[index].token_ids), []).append(index)
        return [tuple(group) for group in groups.values()]


def _told(failed: AttemptFailed) -> ServingError:
    return ServingError(ERROR_KINDS[failed.failure.code], failed.failure.message)


def _first(group: BaseExceptionGroup[ServingError]) -> ServingError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error

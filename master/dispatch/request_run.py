"""The attempts of one request, and what happens when one fails.

Sequences that stand at the same tokens share an attempt (at first all of them: one prefill, n continuations). When it
fails, what is unfinished goes on from the tokens it has, in new attempts on other workers; sampling is a function of
position, so the continuation is the one there would have been.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from master.dispatch.attempt import Attempt, AttemptFailed
from master.dispatch.retry_budget import Failures, RetryBudget
from master.dispatch.token_progress import TokenProgress
from master.dispatch.trace import RequestTrace
from master.errors import ErrorKind, ServingError, invalid
from master.request import GenerationRequest
from master.routing.policies import Policy, soonest
from master.routing.router import Route, missing_route, pick_first, pick_last_resort
from master.routing.views import PromptView
from master.workers.workers import Workers
from protos.sampling_messages import FinishReason
from protos.session_messages import ErrorCode

logger = logging.getLogger(__name__)

_NEVER_RETRIED = (ErrorCode.INVALID_ARGUMENT, ErrorCode.DEADLINE_EXCEEDED)
_KINDS = {
    ErrorCode.INVALID_ARGUMENT: ErrorKind.INVALID_REQUEST,
    ErrorCode.DEADLINE_EXCEEDED: ErrorKind.DEADLINE_EXCEEDED,
    ErrorCode.RESOURCE_EXHAUSTED: ErrorKind.OVERLOADED,
    ErrorCode.UNAVAILABLE: ErrorKind.UNAVAILABLE,
    ErrorCode.TRANSFER_FAILED: ErrorKind.UNAVAILABLE,
    ErrorCode.PEER_UNREACHABLE: ErrorKind.UNAVAILABLE,
    ErrorCode.INTERNAL: ErrorKind.INTERNAL,
}
RETRY_AFTER_S = 1
PATIENCE_S = 10.0


class RequestRun:
    """`run` returns when every sequence is finished, or raises ServingError; cancel it to give up."""

    def __init__(
        self,
        request: GenerationRequest,
        workers: Workers,
        next_number: Callable[[], int],
        budget: RetryBudget,
        policy: Policy = soonest,
    ) -> None:
        self.progress = TokenProgress(request.n)
        self.trace = RequestTrace(request.arrived_s)
        self._request = request
        self._workers = workers
        self._next_number = next_number
        self._budget = budget
        self._policy = policy
        self._avoided: set[str] = set()
        self._running: set[Attempt] = set()

    async def run(self) -> None:
        request = self._request
        try:
            async with asyncio.timeout(request.arrived_s + request.time_limit_s - time.monotonic()):
                await self._run_sequences(tuple(range(request.n)), Failures())
        except TimeoutError as error:
            message = f"not finished within {request.time_limit_s:g} s"
            raise ServingError(ErrorKind.DEADLINE_EXCEEDED, message) from error

    def finish_sequence(self, index: int) -> None:
        """The sequence needs no further token: a stop string was found, which only the master looks for."""
        self.progress.finish(index, FinishReason.STOP)
        for attempt in self._running:
            attempt.finish_sequence(index)

    async def _run_sequences(self, sequences: tuple[int, ...], failures: Failures) -> None:
        """Brings sequences that stand at the same tokens to their end."""
        num_tokens = self._num_tokens(sequences)
        try:
            await self._attempt(sequences, is_retry=failures.total > 0)
            return
        except AttemptFailed as failure:
            failures = failures.another(has_progressed=self._num_tokens(sequences) > num_tokens)
            self._check_retry(failure, failures)
        unfinished = [index for index in sequences if self.progress.sequences[index].finish_reason is None]
        try:
            async with asyncio.TaskGroup() as tasks:
                for group in self._groups(unfinished):
                    tasks.create_task(self._run_sequences(group, failures))
        except* ServingError as errors:
            raise _first(errors) from None

    async def _attempt(self, sequences: tuple[int, ...], is_retry: bool) -> None:
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
            await self._route(prompt, is_retry),
            prompt,
            workers=self._workers,
            next_number=self._next_number,
            progress=self.progress,
            trace=self.trace,
            avoided=self._avoided,
            policy=self._policy,
        )
        self.trace.begin_attempt()
        self._running.add(attempt)
        try:
            await attempt.run()
        finally:
            self._running.discard(attempt)

    async def _route(self, prompt: PromptView, is_retry: bool) -> Route:
        """Raises ServingError when there is no worker for it.

        What has begun can't be asked for again by its client, so it waits a while for one that restarts or was cut off.
        """
        try:
            async with asyncio.timeout(PATIENCE_S if is_retry else 0):
                while True:
                    views = self._workers.views()
                    route = pick_first(views, prompt, self._avoided, self._policy)
                    if route is None and is_retry:
                        route = pick_last_resort(views, prompt, self._avoided, self._policy)
                    if route is not None:
                        return route
                    await self._workers.changed()
        except TimeoutError:
            raise self._refusal(prompt, is_retry) from None

    def _refusal(self, prompt: PromptView, is_retry: bool) -> ServingError:
        """Why there is no route."""
        reason = missing_route(self._workers.views())
        if reason is not None:
            return ServingError(ErrorKind.UNAVAILABLE, reason, retry_after_s=RETRY_AFTER_S)
        problem = f"prompt and completion of {prompt.max_total_tokens} tokens fit no worker's memory"
        if is_retry:  # they did fit one
            return ServingError(ErrorKind.UNAVAILABLE, problem, retry_after_s=RETRY_AFTER_S)
        return invalid("max_tokens", problem)

    def _check_retry(self, error: AttemptFailed, failures: Failures) -> None:
        """Returns when what is unfinished may be tried again; else raises what the client is told."""
        failure = error.failure
        is_lost = failure.code is ErrorCode.UNAVAILABLE
        is_allowed = failure.code not in _NEVER_RETRIED and failures.may_try_again
        if not is_allowed or not (is_lost or self._budget.try_spend()):
            kind = _KINDS[failure.code]
            is_temporary = kind in (ErrorKind.OVERLOADED, ErrorKind.UNAVAILABLE)
            raise ServingError(kind, failure.message, retry_after_s=RETRY_AFTER_S if is_temporary else None)
        logger.info("%s: attempt on %s failed, trying again: %s", self._request.id, error.worker, failure.message)
        self._avoided.add(error.worker)

    def _num_tokens(self, sequences: tuple[int, ...]) -> int:
        return sum(len(self.progress.sequences[index].token_ids) for index in sequences)

    def _groups(self, sequences: list[int]) -> list[tuple[int, ...]]:
        """Sequences by the tokens they stand at."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for index in sequences:
            groups.setdefault(tuple(self.progress.sequences[index].token_ids), []).append(index)
        return [tuple(group) for group in groups.values()]


def _first(group: BaseExceptionGroup[ServingError]) -> ServingError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error

"""The life of one request, from admission to its last token."""

import asyncio
import itertools
from collections.abc import AsyncGenerator

from master.dispatch.request_run import RequestRun
from master.dispatch.retry_budget import RetryBudget
from master.dispatch.running_requests import RunningRequests
from master.errors import ErrorKind, ServingError
from master.output import ChoiceDelta, GenerationOutput, Usage
from master.request import GenerationRequest
from master.routing.policies import Policy, soonest
from master.text.text_stream import TextStream
from master.text.tokenizer import Tokenizer
from master.workers.session import Leg
from master.workers.workers import Workers
from protos.sampling_messages import FinishReason
from protos.session_messages import TokenDelta

CANCEL_TIMEOUT_S = 10.0  # for workers to let go of a cancelled request


class Dispatcher:
    """`max_requests` is how many may be in flight; more are refused."""

    def __init__(self, workers: Workers, tokenizer: Tokenizer, *, max_requests: int, policy: Policy = soonest) -> None:
        self._workers = workers
        self._tokenizer = tokenizer
        self._max_requests = max_requests
        self._policy = policy
        self._numbers = itertools.count(1)
        self._budget = RetryBudget()
        self._running = RunningRequests()
        self.num_in_flight = 0

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """Closing the generator cancels the request on every worker. Raises ServingError."""
        sequences = [_Sequence(request, index, self._tokenizer) for index in range(request.n)]
        self._admit()
        attempts = RequestRun(request, self._workers, lambda: next(self._numbers), self._budget, self._policy)
        running = asyncio.create_task(attempts.run(), name=request.id)
        running.add_done_callback(lambda _: attempts.progress.wake())
        with self._running.hold(request, running) as entry:
            try:
                while not all(sequence.is_finished for sequence in sequences):
                    news = await attempts.progress.take()
                    if entry.is_cancelled:
                        raise ServingError(ErrorKind.CANCELLED, f"{request.id} was cancelled")
                    choices = [choice for delta in news for choice in sequences[delta.sequence].take(delta)]
                    for choice in choices:
                        if isinstance(choice.matched_stop, str):
                            attempts.finish_sequence(choice.index)
                    is_last = all(sequence.is_finished for sequence in sequences)
                    if choices:
                        yield GenerationOutput(
                            choices=tuple(choices),
                            usage=_usage(request, sequences, attempts.trace.cached_tokens) if is_last else None,
                            timeline=attempts.trace.timeline() if is_last else None,
                            prompt_logprobs=attempts.trace.take_prompt_logprobs(),
                        )
                    if running.done() and not is_last and not entry.is_cancelled:
                        running.result()  # raises what ended it
            finally:
                self.num_in_flight -= 1
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async def cancel(self, request_id: str) -> None:
        """Ends the request of this id, or all that are answered under it; their own clients get CANCELLED.

        Returns when no worker that can be reached holds anything for it. Raises ServingError NOT_FOUND, or
        DEADLINE_EXCEEDED when that was not confirmed in time; it is cancelled all the same.
        """
        found = self._running.find(request_id)
        if not found:
            raise ServingError(ErrorKind.NOT_FOUND, f"no request {request_id!r} is running here", field="id")
        for entry in found:
            entry.cancel()
        legs: list[Leg] = []
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                await asyncio.wait([entry.running for entry in found])
                legs = [leg for entry in found for leg in self._workers.legs_of(entry.request.id)]
                for leg in legs:
                    await leg.ended.wait()
                for entry in found:
                    await entry.ended.wait()
        except TimeoutError as error:
            waited = sorted({leg.worker for leg in legs if not leg.ended.is_set()}) or ["its client's connection"]
            message = f"{request_id} is cancelled, but {CANCEL_TIMEOUT_S:g} s were not enough for {', '.join(waited)}"
            raise ServingError(ErrorKind.DEADLINE_EXCEEDED, message) from error

    def _admit(self) -> None:
        if self.num_in_flight >= self._max_requests:
            message = f"{self.num_in_flight} requests are in flight, no more are taken"
            raise ServingError(ErrorKind.OVERLOADED, message, retry_after_s=1)
        self.num_in_flight += 1
        self._budget.count_request()


class _Sequence:
    """One of the n: its text, and where that ends."""

    def __init__(self, request: GenerationRequest, index: int, tokenizer: Tokenizer) -> None:
        self.index = index
        self.num_tokens = 0
        self.is_finished = False
        self._request = request
        self._text = TextStream(
            tokenizer,
            request.prompt_ids,
            stops=request.stop,
            include_stop=request.include_stop,
            skip_special_tokens=request.skip_special_tokens,
            min_tokens=request.sampling.min_tokens,
        )

    def take(self, delta: TokenDelta) -> list[ChoiceDelta]:
        """What the client gets of it: nothing after the sequence's end."""
        if self.is_finished:
            return []
        ids, finish_reason = delta.token_ids, delta.finish_reason
        # A sequence also stops where its grammar is complete, and then its last token is like any other.
        stop_ids = self._request.sampling.stop_token_ids
        ended_by_token = finish_reason is FinishReason.STOP and ids[-1] in stop_ids
        # The token that ended the sequence is counted but is not text, unless the client wants to see stops.
        hidden = 1 if ended_by_token and not self._request.include_stop else 0
        fed = self._text.feed(ids[: len(ids) - hidden])
        text, matched_stop = fed.text, fed.matched_stop
        if matched_stop is None and finish_reason is not None:
            rest = self._text.finish()
            text, matched_stop = text + rest.text, rest.matched_stop
        elif matched_stop is not None:
            ids = ids[: fed.num_ids]
        if matched_stop is not None:
            finish_reason = FinishReason.STOP
        self.num_tokens += len(ids)
        self.is_finished = finish_reason is not None
        choice = ChoiceDelta(
            index=self.index,
            text=text,
            token_ids=ids,
            logprobs=delta.logprobs[: len(ids)],
            finish_reason=finish_reason,
            matched_stop=matched_stop if matched_stop is not None else ids[-1] if ended_by_token else None,
        )
        return [choice]


def _usage(request: GenerationRequest, sequences: list[_Sequence], cached_tokens: int | None) -> Usage:
    return Usage(
        prompt_tokens=len(request.prompt_ids),
        completion_tokens=sum(sequence.num_tokens for sequence in sequences),
        cached_tokens=cached_tokens or 0,
    )

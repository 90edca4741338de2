"""One attempt: on one worker, or on a prefill and a decode worker.

    begin on the first worker --its prefill starts--> choose a decode worker --refused--> another, in the end the
    first one itself --all sequences finished--> done

A decode worker that refused has not touched the KV, so the first worker still has it. After any other failure nobody
knows (it may just have been handed over), and a new attempt finds in the prefix caches what there is.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection

from master.dispatch.token_progress import TokenProgress
from master.dispatch.trace import RequestTrace
from master.request import GenerationRequest
from master.routing.policies import Policy
from master.routing.router import Route, pick_decode
from master.routing.views import PromptView, WorkerView
from master.workers.session import Leg
from master.workers.workers import Workers
from protos.session_messages import ErrorCode, Failure, LegUpdate, Stage, Start, TokenDelta

MAX_REFUSALS = 3  # decode workers tried before the prefill worker decodes
BLAME_TIMEOUT_S = 0.5


class AttemptFailed(Exception):
    """The attempt ended before its sequences did."""

    def __init__(self, failure: Failure, worker: str) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.worker = worker


class Attempt:
    """`sequences` stand at the same tokens: `output_ids` after the prompt. No `avoided` worker is to decode."""

    def __init__(
        self,
        request: GenerationRequest,
        sequences: tuple[int, ...],
        output_ids: tuple[int, ...],
        route: Route,
        prompt: PromptView,
        *,
        workers: Workers,
        next_number: Callable[[], int],
        progress: TokenProgress,
        trace: RequestTrace,
        avoided: Collection[str],
        policy: Policy,
    ) -> None:
        self._request = request
        self._sequences = sequences
        self._output_ids = output_ids
        self._route = route
        self._prompt = prompt
        self._workers = workers
        self._next_number = next_number
        self._progress = progress
        self._trace = trace
        self._updates: asyncio.Queue[tuple[Leg, LegUpdate]] = asyncio.Queue()
        self._legs: list[Leg] = []
        self._decode: Leg | None = None
        self._kv_handle: bytes | None = None
        self._num_refusals = 0
        self._unwanted = set(avoided)
        self._policy = policy
        self._num_prompt_logprobs = 0
        self._held_deltas: list[TokenDelta] = []  # came before the prompt's log-probabilities, from the other worker

    async def run(self) -> None:
        """Returns when every sequence is finished. Raises AttemptFailed."""
        first = self._begin(self._route.worker, self._route.stage)
        try:
            while not self._is_finished():
                leg, update = await self._updates.get()
                self._take(leg, update)
                if leg is first and update.started is not None and update.started.kv_handle is not None:
                    self._kv_handle = update.started.kv_handle
                    self._begin_decode(first)
                if update.failure is not None:
                    await self._on_failure(first, leg, update.failure)
                elif first.has_prefilled and self._has_kv_moved():
                    first.session.release(first)
        finally:
            for leg in self._legs:
                leg.session.end(leg)

    def _take(self, leg: Leg, update: LegUpdate) -> None:
        self._trace.count(leg.worker, leg.start.stage, update)
        self._trace.add_prompt_logprobs(self._num_prompt_logprobs, update.prompt_logprobs)
        self._num_prompt_logprobs += len(update.prompt_logprobs)
        self._held_deltas += update.deltas
        if not self._lacks_prompt_logprobs():
            held, self._held_deltas = self._held_deltas, []
            for delta in held:
                self._progress.add(delta)

    def finish_sequence(self, index: int) -> None:
        """The sequence needs no further token."""
        for leg in self._legs:
            if index in leg.unfinished:
                leg.session.cancel_sequence(leg, index)

    def _begin_decode(self, first: Leg) -> None:
        """On the best worker that is wanted; else on the one that computes the prompt."""
        worker = None
        if self._num_refusals < MAX_REFUSALS:
            views = self._workers.views()
            worker = pick_decode(views, self._route.worker, self._prompt, self._unwanted, self._policy)
        if worker is None:
            self._decode = None
            first.session.decode_here(first)
        else:
            self._decode = self._begin(worker, Stage.DECODE)

    async def _on_failure(self, first: Leg, leg: Leg, failure: Failure) -> None:
        """Returns when the attempt can go on without the leg."""
        if leg is self._decode and _is_refusal(leg, failure):
            self._num_refusals += 1
            self._unwanted.add(leg.worker)
            self._begin_decode(first)
        elif leg is self._decode:
            raise await self._blame(first, leg, failure)
        elif not self._has_kv_moved() or self._lacks_prompt_logprobs():
            raise AttemptFailed(failure, leg.worker)

    async def _blame(self, first: Leg, leg: Leg, failure: Failure) -> AttemptFailed:
        """A failed transfer is often the first sign that the prefill worker died, and that is what counts then."""
        if failure.code in (ErrorCode.TRANSFER_FAILED, ErrorCode.PEER_UNREACHABLE):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BLAME_TIMEOUT_S):
                    while True:
                        other, update = await self._updates.get()
                        self._take(other, update)
                        if other is first and update.failure is not None:
                            return AttemptFailed(update.failure, first.worker)
        return AttemptFailed(failure, leg.worker)

    def _has_kv_moved(self) -> bool:
        """Whether the decode worker needs the first one no more."""
        return self._decode is not None and self._decode.has_prefilled

    def _lacks_prompt_logprobs(self) -> bool:
        wanted = self._request.sampling.prompt_logprobs is not None
        return wanted and len(self._trace.prompt_logprobs) < len(self._request.prompt_ids)

    def _begin(self, worker: WorkerView, stage: Stage) -> Leg:
        session = self._workers.session(worker.name)
        if session is None or not session.is_usable:
            raise AttemptFailed(Failure(ErrorCode.UNAVAILABLE, f"worker {worker.name} was lost"), worker.name)
        request = self._request
        sampling = request.sampling
        if not self._lacks_prompt_logprobs():
            sampling = dataclasses.replace(sampling, prompt_logprobs=None)  # an earlier attempt reported them
        age_s = time.monotonic() - request.arrived_s
        start = Start(
            leg=self._next_number(),
            request_id=request.id,
            stage=stage,
            prompt_ids=request.prompt_ids,
            output_ids=self._output_ids,
            sequences=self._sequences,
            sampling=sampling,
            priority=request.priority,
            cache_salt=request.cache_salt,
            time_limit_s=request.time_limit_s - age_s,
            kv_handle=self._kv_handle,
            age_s=age_s,
        )
        uncached = self._prompt.num_tokens - self._prompt.cached_tokens(worker)
        leg = session.begin(start, self._on_update, uncached)
        self._legs.append(leg)
        return leg

    def _on_update(self, leg: Leg, update: LegUpdate) -> None:
        self._updates.put_nowait((leg, update))

    def _is_finished(self) -> bool:
        return all(self._progress.sequences[index].finish_reason is not None for index in self._sequences)


def _is_refusal(leg: Leg, failure: Failure) -> bool:
    """Whether the decode worker said that it will not begin."""
    codes = (ErrorCode.RESOURCE_EXHAUSTED, ErrorCode.UNAVAILABLE)
    return failure.code in codes and not leg.is_lost and not leg.has_started
